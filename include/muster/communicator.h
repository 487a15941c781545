/// \file
/// Communication between ranks: one interface for threads of a process, MPI and NCCL, with one contract.
///
/// - Every rank calls the same collectives in the same order. A rank sends the bytes that its peer expects.
/// - An operation starts when it is called and ends in wait(); several may be under way. Until then its buffers are its
///   own. It waits only for the ranks that it exchanges messages with (NCCL, in host memory: for all ranks).
/// - Sums are taken in the order of the ranks, in the type given: every rank gets the same bits, every time.
/// - No call waits longer than the timeout. If a peer died, left, is late or disagrees, calls throw a CommError. It
///   names the operation and, where it is known, the rank. Afterwards every call on this communicator throws the same
///   cause, on all ranks as soon as they notice.
/// - One thread at a time uses a communicator and its requests; only abort() may come from another thread.
/// - A rank leaves by destroying its communicator. Operations that it has started still end; those that peers start
///   with it later fail.
///
/// docs/explanation/communication.md says what a caller can do about an error.
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

/// A message to one rank. The caller owns the memory.
struct Send {
  int32_t peer = 0;            ///< the rank that receives it
  const void* data = nullptr;  ///< host memory; device memory for StreamCommunicator
  int64_t bytes = 0;           ///< its length; the peer expects as many
};

/// A message from one rank, and the memory that it is written to, which the caller owns.
struct Receive {
  int32_t peer = 0;      ///< the rank that sends it
  void* data = nullptr;  ///< host memory; device memory for StreamCommunicator
  int64_t bytes = 0;     ///< its length; the peer sends as many
};

/// What a reduction computes of the values of all ranks. A NaN wins over any number in kMin and kMax.
enum class ReduceOp : uint8_t {
  kSum,  ///< the sum, taken in the order of the ranks; integer sums wrap
  kMin,  ///< the least
  kMax,  ///< the largest
};

/// An operation under way. Its destructor waits for an unfinished operation and ignores the error.
class Request {
 public:
  virtual ~Request() = default;
  /// True once the operation has finished. Throws CommError if it failed, or if the timeout has passed since the first
  /// call that returned false. MPI moves large messages only inside such calls: a rank that computes for long should
  /// call test() now and then.
  virtual bool test() = 0;
  /// Waits until the operation has finished, at most for the timeout. Throws CommError.
  virtual void wait() = 0;
};

/// Operations of the same ranks on device memory, enqueued on a stream (a cudaStream_t), which may be capturing a
/// graph. A call returns when its operation is enqueued and throws CommError if an earlier operation has failed.
/// Destroy graphs that contain operations before their communicator.
class StreamCommunicator {
 public:
  virtual ~StreamCommunicator() = default;

  /// A ragged all-to-all, as Communicator::exchange(), in the order of `stream`. All ranks call it.
  virtual void exchange(std::span<const Send> sends, std::span<const Receive> receives, std::string_view label,
                        void* stream) = 0;
  /// Sums `count` integers over the ranks, in place and in the order of `stream`. All ranks call it. Sums wrap, so
  /// their order does not matter.
  virtual void all_reduce(int64_t* data, int64_t count, std::string_view label, void* stream) = 0;

  /// Blocks until done() returns true. Throws CommError if a peer has gone or the timeout has passed; by then the
  /// operations under way have been aborted, so that their stream can drain. Not collective.
  virtual void watch(const std::function<bool()>& done, std::string_view label) = 0;
};

/// What a set of ranks communicates by: one object per rank. The contract at the top of this file holds for every
/// implementation.
class Communicator {
 public:
  virtual ~Communicator() = default;

  /// This rank, from 0. Not collective; nor are the next two.
  virtual int32_t rank() const = 0;
  /// How many ranks there are.
  virtual int32_t size() const = 0;
  /// How long a rank waits for another before it throws CommError.
  virtual std::chrono::milliseconds timeout() const = 0;

  /// A ragged all-to-all: at most one message to and one from each peer, in any order. A message to the rank itself is
  /// a copy; a message of zero bytes is not sent. Every rank must call it, also without messages. `label` names the
  /// operation in errors and is the same on all ranks.
  virtual std::unique_ptr<Request> exchange(std::span<const Send> sends, std::span<const Receive> receives,
                                            std::string_view label) = 0;

  /// Gathers `bytes` bytes from every rank: those of rank r begin at all + r * bytes. `mine` may point into `all`, at
  /// this rank's place. All ranks call it.
  virtual std::unique_ptr<Request> all_gather(const void* mine, void* all, int64_t bytes, std::string_view label) = 0;
  /// Reduces element by element over the ranks. `all` has the parts of all ranks, one after the other, with parts[r]
  /// elements for rank r; `mine` receives the parts[rank()] reduced elements of this rank. All ranks call it.
  virtual std::unique_ptr<Request> reduce_scatter(const float* all, float* mine, std::span<const int64_t> parts,
                                                  ReduceOp op, std::string_view label) = 0;
  /// Reduces element by element over the ranks, in place. All ranks call it with as many elements.
  virtual std::unique_ptr<Request> all_reduce(std::span<float> data, ReduceOp op, std::string_view label) = 0;
  /// The same for doubles.
  virtual std::unique_ptr<Request> all_reduce(std::span<double> data, ReduceOp op, std::string_view label) = 0;
  /// The same for integers.
  virtual std::unique_ptr<Request> all_reduce(std::span<int64_t> data, ReduceOp op, std::string_view label) = 0;
  /// Copies `bytes` bytes of rank `root` to all other ranks. All ranks call it.
  virtual std::unique_ptr<Request> broadcast(void* data, int64_t bytes, int32_t root, std::string_view label) = 0;
  /// Ends when every rank has called it.
  virtual std::unique_ptr<Request> barrier(std::string_view label) = 0;

  /// Makes every operation, under way or later, throw a CommError with the reason: here at once, on the other ranks as
  /// soon as they notice. Not collective; any thread may call it.
  virtual void abort(std::string_view reason) = 0;

  /// The same ranks for device memory and streams. Null if this communicator moves host memory only. This communicator
  /// owns it.
  virtual StreamCommunicator* on_stream() { return nullptr; }
};

/// Options of the communicators that this header makes.
struct CommOptions {
  /// How long a rank waits for another before it throws CommError; more than zero.
  std::chrono::milliseconds timeout{std::chrono::minutes(10)};
};

/// The communicators of ranks that are threads of this process; element r belongs to rank r. Throws InvalidArgument.
std::vector<std::unique_ptr<Communicator>> make_local_communicators(int32_t ranks, const CommOptions& options = {});

/// True if MPI was built in.
bool mpi_available();
/// A duplicate of MPI_COMM_WORLD. All its ranks call this, and all destroy their communicator: the destructor waits, at
/// most for the timeout, until all have. Initializes MPI if the program has not, and then finalizes it at exit, unless
/// a communicator failed or was not destroyed: MPI_Finalize would wait for the lost rank. Throws CommError where MPI
/// was not built in or cannot be used.
std::unique_ptr<Communicator> make_mpi_communicator(const CommOptions& options = {});

/// What the ranks of one NCCL communicator have in common. Rank 0 makes it and sends it to the others by any means.
struct NcclId {
  std::array<std::byte, 128> bytes{};  ///< an ncclUniqueId
};
/// True if NCCL was built in and libnccl was found.
bool nccl_available();
/// An id for one communicator. One rank calls it. Throws CommError where NCCL was not built in or libnccl was not
/// found.
NcclId make_nccl_id();
/// A communicator on the current CUDA device of the calling thread. All ranks call it together. Throws CommError where
/// NCCL was not built in or libnccl was not found.
std::unique_ptr<Communicator> make_nccl_communicator(const NcclId& id, int32_t rank, int32_t size,
                                                     const CommOptions& options = {});
/// The same over the ranks of another communicator, which sends the id and is not needed afterwards.
std::unique_ptr<Communicator> make_nccl_communicator(Communicator& others, const CommOptions& options = {});

}  // namespace muster
