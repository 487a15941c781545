// How ranks talk. One interface for threads of a process, MPI and NCCL, with one contract:
//
// - Every rank calls the same collectives in the same order. What a rank sends and what its peer expects agree in
// bytes.
// - An operation starts at once and ends in wait(); several may be under way. Buffers belong to it until then. It waits
//   only for the ranks it has messages with.
// - Sums are taken in the order of the ranks, in the type given: the same bits on every rank, every time.
// - Nothing waits longer than the timeout. A peer that died, left, is late or disagrees becomes a CommError that names
//   the operation and, where it can be known, the rank; afterwards every call on this communicator throws it again at
//   once, on all ranks as soon as they notice.
// - A communicator and its requests are one thread's at a time; abort() alone may come from another. Destroying a
//   communicator is leaving: operations this rank has started still end, peers that start later ones with it fail.
//
// docs/comm.md says what a caller can do about an error.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace muster {

struct Send {
  int32_t peer = 0;
  const void* data = nullptr;
  int64_t bytes = 0;
};

struct Receive {
  int32_t peer = 0;
  void* data = nullptr;
  int64_t bytes = 0;
};

// Integer sums wrap. A NaN wins over any number in kMin and kMax.
enum class ReduceOp : uint8_t { kSum, kMin, kMax };

// An operation under way. Destroying it unfinished waits for it, and swallows the error.
class Request {
 public:
  virtual ~Request() = default;
  // True once finished. Throws CommError, also when the timeout has passed since the first test that said false. MPI
  // moves large messages only inside such calls: a rank that computes for long should test now and then.
  virtual bool test() = 0;
  virtual void wait() = 0;  // for the timeout at most; throws CommError
};

// The same ranks, for work that is enqueued on a stream (a cudaStream_t) and may be captured into a graph there.
// Buffers are on the device. A call returns when its operation is enqueued, and throws what an earlier failure left
// behind. Graphs that hold operations go before their communicator.
class StreamCommunicator {
 public:
  virtual ~StreamCommunicator() = default;

  virtual void exchange(std::span<const Send> sends, std::span<const Receive> receives, std::string_view label,
                        void* stream) = 0;
  // In place; sums wrap, so that their order does not matter.
  virtual void all_reduce(int64_t* data, int64_t count, std::string_view label, void* stream) = 0;

  // Blocks until done() says true. Throws CommError once a peer is known to be gone, or the timeout has passed: then
  // operations under way have been ended, so that their stream comes to rest.
  virtual void watch(const std::function<bool()>& done, std::string_view label) = 0;
};

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int32_t rank() const = 0;
  virtual int32_t size() const = 0;
  virtual std::chrono::milliseconds timeout() const = 0;

  // A ragged all-to-all. At most one message to and from each peer, in any order; a message to oneself is a copy. Ranks
  // that neither send nor receive call it too; zero bytes are no message. `label` names the operation in errors and
  // must be alike on all ranks.
  virtual std::unique_ptr<Request> exchange(std::span<const Send> sends, std::span<const Receive> receives,
                                            std::string_view label) = 0;

  // all[r * bytes] onwards is what rank r gave; `mine` may be its place there.
  virtual std::unique_ptr<Request> all_gather(const void* mine, void* all, int64_t bytes, std::string_view label) = 0;
  // mine is the element-wise reduction of every rank's part for this rank; parts[r] elements go to rank r.
  virtual std::unique_ptr<Request> reduce_scatter(const float* all, float* mine, std::span<const int64_t> parts,
                                                  ReduceOp op, std::string_view label) = 0;
  // In place.
  virtual std::unique_ptr<Request> all_reduce(std::span<float> data, ReduceOp op, std::string_view label) = 0;
  virtual std::unique_ptr<Request> all_reduce(std::span<double> data, ReduceOp op, std::string_view label) = 0;
  virtual std::unique_ptr<Request> all_reduce(std::span<int64_t> data, ReduceOp op, std::string_view label) = 0;
  virtual std::unique_ptr<Request> broadcast(void* data, int64_t bytes, int32_t root, std::string_view label) = 0;
  virtual std::unique_ptr<Request> barrier(std::string_view label) = 0;

  // Ends every operation under way and to come, here and, as soon as they notice, on all ranks.
  virtual void abort(std::string_view reason) = 0;

  // For memory of a device, in the order of its streams; null: this communicator moves what the host can reach.
  virtual StreamCommunicator* on_stream() { return nullptr; }
};

struct CommOptions {
  // How long a rank waits for another before it gives up; more than zero.
  std::chrono::milliseconds timeout{std::chrono::minutes(10)};
};

// Ranks as threads of this process: element r is rank r's. All share one timeout.
std::vector<std::unique_ptr<Communicator>> make_local_communicators(int32_t ranks, const CommOptions& options = {});

// MPI_COMM_WORLD, duplicated; all its ranks call this, and destroy what they got: its destructor waits, for the timeout
// at most, until they have. Initializes MPI if nobody has, and then finalizes it at exit, unless a communicator failed
// or was not destroyed: MPI_Finalize would wait for the lost rank. Throws CommError where MPI was not built in or is
// not there.
bool mpi_available();
std::unique_ptr<Communicator> make_mpi_communicator(const CommOptions& options = {});

// NCCL, on the current CUDA device of the calling thread. Rank 0 makes an id and hands it to the others by any means;
// then all make their communicators together. Throws CommError where NCCL was not built in, or libnccl is not there.
struct NcclId {
  std::array<std::byte, 128> bytes{};
};
bool nccl_available();
NcclId make_nccl_id();
std::unique_ptr<Communicator> make_nccl_communicator(const NcclId& id, int32_t rank, int32_t size,
                                                     const CommOptions& options = {});
// With the ranks of another communicator, which carries the id and is not needed afterwards.
std::unique_ptr<Communicator> make_nccl_communicator(Communicator& others, const CommOptions& options = {});

}  // namespace muster
