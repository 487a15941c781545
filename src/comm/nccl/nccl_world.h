// The ranks of a NCCL communicator as one process's operations see them.
//
// There are two ncclComm_t. Streams have one to themselves: NCCL pairs messages by their order alone, and a word of
// the other kind between them would be taken for data. The control ranks carry what is in host memory, one operation
// after another, through pinned memory that NCCL's kernels read and write:
//
//   1. a roll call: every rank tells every rank what it is about to do, also that it failed, aborts or leaves. Where
//      they disagree all find the same cause, and nobody starts a message that would hang.
//   2. the messages, in pieces of a size that all know.
//
// Each entry of the roll call arrives by itself, and so a rank that waits can tell for whom.
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <optional>

#include "comm/nccl/nccl_communicator.h"
#include "comm/nccl/nccl_device.h"
#include "comm/nccl/nccl_ranks.h"
#include "comm/process.h"
#include "comm/roll_call.h"

namespace muster::comm::nccl {

// One rank's part of one operation.
struct Operation {
  Posting posting;
  bool done = false;
};

class World {
 public:
  // All ranks call it.
  World(const NcclId& id, int32_t rank, int32_t size, const CommOptions& options, const Limits& limits);
  World(const World&) = delete;
  World& operator=(const World&) = delete;
  // Leaves, and waits until all have.
  ~World();

  int32_t rank() const { return rank_; }
  int32_t size() const { return size_; }
  std::chrono::milliseconds timeout() const { return timeout_; }

  std::shared_ptr<Operation> post(Posting posting);
  // True once done. Fails past the deadline.
  bool advance(Operation& operation, Clock::time_point deadline);
  // Between any two memories, at once.
  void copy(void* to, const void* from, int64_t bytes);
  void abort(std::string_view reason);

  // Messages and sums in the order of a stream.
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
  std::string late_text(const std::string& name) const;
  void look_for_the_dead(const std::string& name);
  std::optional<int32_t> find_dead() const;
  template <typename Enqueue>
  void on_streams(const std::string& name, const Enqueue& enqueue);

  // All these end everything here; the first cause stays. part() makes sure that the others have heard what this rank
  // has; explain() looks for what is behind an error of NCCL's.
  void part(const std::string& cause);
  void explain(const std::string& name, const std::string& error);
  void die(const std::string& cause);
  [[noreturn]] void raise(std::string_view name) const;
  void close();

  std::mutex mutex_;  // abort() comes from any thread
  int32_t rank_;
  int32_t size_;
  std::chrono::milliseconds timeout_;
  int device_ = 0;
  int64_t piece_bytes_;
  PinnedBytes pinned_;  // the entries of the roll call, then pieces to and from each rank
  RollCall roll_call_;
  std::byte* pieces_out_;
  std::byte* pieces_in_;
  Stream stream_;
  Stream copies_;  // moves when stream_ waits for others
  Event event_;
  bool recorded_ = true;  // whether the event stands behind what was launched last
  Round round_ = Round::kNone;
  int64_t at_ = 0;  // where in their messages the pieces under way begin
  std::deque<std::shared_ptr<Operation>> queue_;
  bool closing_ = false;              // starts no more operations
  std::vector<ProcessId> processes_;  // by rank
  Clock::time_point next_look_;       // for ranks that died
  std::optional<std::string> failure_;
  std::unique_ptr<Ranks> control_;  // these two last: NCCL is gone before what it writes to
  std::unique_ptr<Ranks> streams_;
};

}  // namespace muster::comm::nccl
