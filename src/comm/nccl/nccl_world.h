// One rank's view of a NCCL communicator: its operations, and what other ranks say.
//
// There are two ncclComm_t. Operations on streams have one to themselves: NCCL pairs messages by their order alone, so
// a control message between them would be taken for data. The other, `control_comm_`, carries operations on host
// memory, one after another, through pinned memory that NCCL's kernels read and write:
//
// 1. A roll call: every rank tells every rank what it is about to do, or that it failed, aborts or leaves. Where ranks
//    disagree, all find the same cause, and no rank starts a message that would hang.
// 2. The messages, in pieces of a size that all ranks know.
//
// Each entry of the roll call is a message of its own, so a rank that waits can name the rank it waits for.
#pragma once

#include <deque>
#include <memory>
#include <optional>

#include "comm/nccl/nccl_comm.h"
#include "comm/nccl/nccl_communicator.h"
#include "comm/nccl/nccl_device.h"
#include "comm/process.h"
#include "comm/roll_call.h"
#include "comm/world.h"

namespace muster::comm::nccl {

// One rank's part of one operation.
struct Operation {
  Posting posting;
  bool done = false;
};

class World : public WorldBase {
 public:
  // Collective: all ranks call it, each with its own current device.
  World(const NcclId& id, int32_t rank, int32_t size, const CommOptions& options, const Limits& limits);
  // Leaves, and waits until all ranks have.
  ~World();

  std::shared_ptr<Operation> post(Posting posting);
  // True once done. Fails past the deadline.
  bool advance(Operation& operation, Clock::time_point deadline);
  // Copies between host or device memory; returns when done.
  void copy(void* to, const void* from, int64_t bytes);
  void abort(std::string_view reason);

  // Enqueue messages or a sum on a stream.
  void enqueue(const Posting& posting, cudaStream_t stream);
  void enqueue_sum(int64_t* data, int64_t count, const std::string& name, cudaStream_t stream);
  // Fails if a rank is gone, NCCL met an error or the deadline has passed.
  void check_streams(const std::string& name, Clock::time_point deadline);

 private:
  enum class Round : uint8_t { kNone, kRollCall, kPieces };

  void connect(Clock::time_point deadline);
  void step(const std::string& name);
  void call_roll();
  bool start_pieces(const Posting& posting);
  void take_pieces(const Posting& posting);
  void launch(std::span<const Send> sends, std::span<const Receive> receives);
  bool launched_is_done();
  bool finish_round(Clock::time_point deadline);
  Failure late_ranks(const std::string& name) const;
  void check_peers_alive(const std::string& name);
  std::optional<int32_t> find_dead() const;
  template <typename Enqueue>
  void on_streams(const std::string& name, const Enqueue& enqueue);

  // Each of these ends every operation of this rank; the first cause stays. leave_after() first makes sure that the
  // other ranks have heard the cause; explain() looks for the cause of an error that NCCL reports.
  void leave_after(const std::string& cause);
  void explain(const std::string& name, const Failure& error);
  void die(const Failure& cause);
  void close();

  int device_ = 0;
  int64_t piece_bytes_;
  PinnedBytes pinned_;  // the entries of the roll call, then pieces to and from each rank
  RollCall roll_call_;
  std::byte* pieces_out_;
  std::byte* pieces_in_;
  OwnedStream stream_;
  OwnedStream copies_;  // copies while stream_ waits for other ranks
  CudaEvent event_;
  bool recorded_ = true;  // whether the event has been recorded after the last launch
  Round round_ = Round::kNone;
  int64_t at_ = 0;  // offset in their messages of the pieces that are moving
  std::deque<std::shared_ptr<Operation>> queue_;
  bool closing_ = false;                    // start no more operations
  std::vector<ProcessId> processes_;        // by rank
  Clock::time_point next_look_;             // for ranks that died
  std::unique_ptr<NcclComm> control_comm_;  // declared last, so that NCCL is gone before the memory that it writes to
  std::unique_ptr<NcclComm> stream_comm_;
};

}  // namespace muster::comm::nccl
