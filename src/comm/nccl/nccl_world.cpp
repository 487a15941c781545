#include "comm/nccl/nccl_world.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "comm/backoff.h"
#include "comm/nccl/nccl_library.h"
#include "muster/error.h"

namespace muster::comm::nccl {

namespace {

// Control messages are small, so most of the device is left to the step.
constexpr int32_t kControlBlocks = 4;
constexpr auto kLookInterval = std::chrono::milliseconds(100);
// How long a rank that fails waits for the others to receive the cause, and for the system to report a dead process.
constexpr auto kGoodbyeTimeout = std::chrono::milliseconds(1000);
constexpr auto kDeathTimeout = std::chrono::milliseconds(500);

int64_t choose_piece_bytes(const Limits& limits, int32_t size) {
  constexpr int64_t kUnit = 256;
  if (size == 1) return kUnit;
  return std::max(limits.staging_bytes / size / kUnit, int64_t{1}) * kUnit;
}

int current_device() {
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  return device;
}

std::vector<int32_t> peers_of(const Posting& posting) {
  std::vector<int32_t> peers;
  for (const Send& send : posting.sends) peers.push_back(send.peer);
  for (const Receive& receive : posting.receives) peers.push_back(receive.peer);
  std::sort(peers.begin(), peers.end());
  peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
  return peers;
}

}  // namespace

World::World(const NcclId& id, int32_t rank, int32_t size, const CommOptions& options, const Limits& limits)
    : WorldBase(rank, size, options.timeout),
      device_(current_device()),
      piece_bytes_(choose_piece_bytes(limits, size)),
      pinned_(size * (RollCall::entry_bytes(size) + 2 * piece_bytes_)),
      roll_call_(pinned_.data(), rank, size),
      pieces_out_(pinned_.data() + size * roll_call_.entry_bytes()),
      pieces_in_(pieces_out_ + size * piece_bytes_),
      next_look_(Clock::now() + kLookInterval) {
  if (size_ == 1) return;
  const Clock::time_point deadline = deadline_after(timeout_);
  control_comm_ = std::make_unique<NcclComm>(id, rank, size, kControlBlocks, deadline);
  connect(deadline);
}

// The first message to a rank makes its connection. Doing so here finds missing ranks early and saves the first step
// the time.
void World::connect(Clock::time_point deadline) {
  const auto exchange = [&](const char* what, auto& mine, auto& all) {
    constexpr auto kBytes = static_cast<int64_t>(sizeof mine);
    Posting posting;
    posting.name = fmt::format("make_nccl_communicator '{}'", what);
    for (int32_t peer = 0; peer < size_; ++peer) {
      if (peer == rank_) continue;
      posting.sends.push_back({peer, &mine, kBytes});
      posting.receives.push_back({peer, &all[peer], kBytes});
    }
    const std::shared_ptr<Operation> operation = post(std::move(posting));
    for (Backoff backoff; !advance(*operation, deadline);) backoff.pause();
    all[rank_] = mine;
  };
  std::vector<ProcessId> processes(static_cast<size_t>(size_));
  ProcessId process = this_process();
  exchange("processes", process, processes);
  processes_ = std::move(processes);

  std::vector<NcclId> ids(static_cast<size_t>(size_));
  NcclId id = rank_ == 0 ? make_id() : NcclId{};
  exchange("streams", id, ids);
  stream_comm_ = std::make_unique<NcclComm>(ids[0], rank_, size_, 0, deadline);

  // A few bytes between all ranks, and a sum: a graph captured later finds all connections made.
  std::vector<Send> sends;
  std::vector<Receive> receives;
  for (int32_t peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    sends.push_back({peer, pieces_out_, 16});
    receives.push_back({peer, pieces_in_ + peer * piece_bytes_, 16});
  }
  const std::string name = "make_nccl_communicator";
  stream_comm_->enqueue(sends, receives, stream_);
  stream_comm_->wait_until_ready(deadline, name);
  stream_comm_->enqueue_sum(reinterpret_cast<int64_t*>(pieces_out_), 2, stream_);
  stream_comm_->wait_until_ready(deadline, name);
  event_.record(stream_);
  for (Backoff backoff; !event_.done(); backoff.pause()) check_streams(name, deadline);
}

World::~World() {
  try {
    const DeviceGuard device(device_);
    const std::lock_guard lock(mutex_);
    close();
  } catch (const Error&) {
  }
}

void World::close() {
  if (failure_ || size_ == 1 || !stream_comm_) return;
  const Clock::time_point deadline = deadline_after(timeout_);
  try {
    roll_call_.begin(Word::kLeft, "");
    call_roll();
    for (Backoff backoff; !launched_is_done(); backoff.pause()) {
      check_peers_alive("leaving");
      if (failure_ || Clock::now() >= deadline) return;
    }
    if (const auto trouble = roll_call_.trouble()) return leave_after(*trouble);
  } catch (const Error&) {
    return;
  }
  stream_comm_->close(deadline);
  control_comm_->close(deadline);
}

std::shared_ptr<Operation> World::post(Posting posting) {
  const DeviceGuard device(device_);
  const std::lock_guard lock(mutex_);
  if (failure_) raise(posting.name);
  auto operation = std::make_shared<Operation>();
  operation->posting = std::move(posting);
  if (size_ == 1) {
    operation->done = true;
    return operation;
  }
  queue_.push_back(operation);
  step(operation->posting.name);
  if (failure_) raise(operation->posting.name);
  return operation;
}

bool World::advance(Operation& operation, Clock::time_point deadline) {
  const std::lock_guard lock(mutex_);
  if (operation.done) return true;
  const std::string& name = operation.posting.name;
  if (failure_) raise(name);
  const DeviceGuard device(device_);
  step(name);
  if (!failure_ && !operation.done) {
    check_peers_alive(name);
    if (!failure_ && Clock::now() >= deadline) die(late_ranks(name));
  }
  if (failure_ && !operation.done) raise(name);
  return operation.done;
}

// Runs one operation at a time, in the order in which they were posted, which all ranks share.
void World::step(const std::string& name) try {
  while (!failure_ && !queue_.empty()) {
    Operation& operation = *queue_.front();
    if (round_ == Round::kNone) {
      if (closing_) return;
      roll_call_.begin(operation.posting);
      call_roll();
    }
    if (!launched_is_done()) return;
    if (round_ == Round::kRollCall) {
      if (const auto trouble = roll_call_.trouble()) return leave_after(*trouble);
      at_ = 0;
    } else {
      take_pieces(operation.posting);
      at_ += piece_bytes_;
    }
    if (start_pieces(operation.posting)) continue;
    operation.done = true;
    round_ = Round::kNone;
    queue_.pop_front();
  }
} catch (const Error& error) {
  explain(name, error.failure());
}

void World::call_roll() {
  std::vector<Send> sends;
  std::vector<Receive> receives;
  const int64_t bytes = roll_call_.entry_bytes();
  for (int32_t peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    sends.push_back({peer, roll_call_.entry(rank_), bytes});
    receives.push_back({peer, roll_call_.entry(peer), bytes});
  }
  launch(sends, receives);
  round_ = Round::kRollCall;
}

// False if all messages have been moved.
bool World::start_pieces(const Posting& posting) {
  std::vector<Send> sends;
  std::vector<Receive> receives;
  for (const Send& send : posting.sends) {
    if (send.bytes <= at_) continue;
    const int64_t bytes = std::min(send.bytes - at_, piece_bytes_);
    std::byte* piece = pieces_out_ + send.peer * piece_bytes_;
    copy(piece, static_cast<const std::byte*>(send.data) + at_, bytes);
    sends.push_back({send.peer, piece, bytes});
  }
  for (const Receive& receive : posting.receives) {
    if (receive.bytes <= at_) continue;
    const int64_t bytes = std::min(receive.bytes - at_, piece_bytes_);
    receives.push_back({receive.peer, pieces_in_ + receive.peer * piece_bytes_, bytes});
  }
  if (sends.empty() && receives.empty()) return false;
  launch(sends, receives);
  round_ = Round::kPieces;
  return true;
}

void World::take_pieces(const Posting& posting) {
  for (const Receive& receive : posting.receives) {
    if (receive.bytes <= at_) continue;
    const int64_t bytes = std::min(receive.bytes - at_, piece_bytes_);
    copy(static_cast<std::byte*>(receive.data) + at_, pieces_in_ + receive.peer * piece_bytes_, bytes);
  }
}

void World::copy(void* to, const void* from, int64_t bytes) {
  check(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, copies_), "cudaMemcpyAsync");
  check(cudaStreamSynchronize(copies_), "cudaStreamSynchronize");
}

void World::launch(std::span<const Send> sends, std::span<const Receive> receives) {
  control_comm_->enqueue(sends, receives, stream_);
  recorded_ = false;
}

bool World::launched_is_done() {
  if (!control_comm_->ready()) return false;
  if (!recorded_) {
    event_.record(stream_);
    recorded_ = true;
  }
  return event_.done();
}

bool World::finish_round(Clock::time_point deadline) {
  for (Backoff backoff; !launched_is_done(); backoff.pause()) {
    if (Clock::now() >= deadline) return false;
  }
  return true;
}

Failure World::late_ranks(const std::string& name) const {
  std::vector<int32_t> ranks;
  if (round_ == Round::kRollCall) ranks = roll_call_.missing();
  // All ranks answered the roll call; NCCL does not say whose message is missing.
  if (ranks.empty()) ranks = peers_of(queue_.front()->posting);
  return late(name, ranks, timeout_);
}

std::optional<int32_t> World::find_dead() const {
  for (int32_t peer = 0; peer < static_cast<int32_t>(processes_.size()); ++peer) {
    if (peer != rank_ && is_gone(processes_[peer], processes_[rank_])) return peer;
  }
  return std::nullopt;
}

void World::check_peers_alive(const std::string& name) {
  const Clock::time_point now = Clock::now();
  if (now < next_look_) return;
  next_look_ = now + kLookInterval;
  if (const auto dead = find_dead()) die(fmt::format("{}: rank {} died", name, *dead));
}

void World::explain(const std::string& name, const Failure& error) {
  if (failure_) return;
  // NCCL notices a broken connection before the system reports that the process is gone.
  const Clock::time_point deadline = Clock::now() + kDeathTimeout;
  std::optional<int32_t> dead;
  for (Backoff backoff; !(dead = find_dead()) && Clock::now() < deadline;) backoff.pause();
  die(dead ? Failure(fmt::format("{}: rank {} died", name, *dead)) : error.within(name));
}

void World::abort(std::string_view reason) try {
  const DeviceGuard device(device_);
  const std::lock_guard lock(mutex_);
  if (failure_) return;
  const std::string cause = aborted(rank_, reason);
  if (size_ == 1) return die(cause);
  // The others may be in the middle of an operation with this rank, and receive nothing before its end.
  closing_ = true;
  const Clock::time_point deadline = Clock::now() + std::min<std::chrono::milliseconds>(timeout_, kGoodbyeTimeout);
  for (Backoff backoff; round_ != Round::kNone && !failure_; backoff.pause()) {
    if (Clock::now() >= deadline) return die(cause);
    step(cause);
  }
  if (failure_) return;
  try {
    roll_call_.begin(Word::kAborted, reason);
    call_roll();
    if (finish_round(deadline)) return leave_after(cause);
  } catch (const Error&) {
  }
  die(cause);
} catch (const DeviceError& error) {
  const std::lock_guard lock(mutex_);
  die(error.failure());
}

// A roll call is done for a rank once its own entries are sent. If it aborted at once they might be lost, so it waits
// for answers to another call, which show that they arrived.
void World::leave_after(const std::string& cause) {
  try {
    roll_call_.begin(Word::kFailed, cause);
    call_roll();
    finish_round(Clock::now() + std::min<std::chrono::milliseconds>(timeout_, kGoodbyeTimeout));
  } catch (const Error&) {
  }
  die(cause);
}

void World::die(const Failure& cause) {
  if (failure_) return;
  failure_ = cause;
  queue_.clear();
  if (stream_comm_) stream_comm_->abort();
  if (control_comm_) control_comm_->abort();
}

template <typename Enqueue>
void World::on_streams(const std::string& name, const Enqueue& enqueue) {
  const DeviceGuard device(device_);
  const Clock::time_point deadline = deadline_after(timeout_);
  Backoff backoff;
  bool enqueued = false;
  for (bool ready = false; !ready; backoff.pause()) {
    const std::lock_guard lock(mutex_);
    if (failure_) raise(name);
    try {
      if (!std::exchange(enqueued, true)) enqueue();
      ready = !stream_comm_ || stream_comm_->ready();
    } catch (const Error& error) {
      explain(name, error.failure());
    }
    if (!ready && Clock::now() >= deadline) {
      die({fmt::format("{}: NCCL did not enqueue it within {} ms", name, timeout_.count()), ErrorCode::kRankMissing});
    }
    if (failure_) raise(name);
  }
}

void World::enqueue(const Posting& posting, cudaStream_t stream) {
  on_streams(posting.name, [&] {
    if (posting.sends.empty() && posting.receives.empty()) return;
    stream_comm_->enqueue(posting.sends, posting.receives, stream);
  });
}

void World::enqueue_sum(int64_t* data, int64_t count, const std::string& name, cudaStream_t stream) {
  on_streams(name, [&] {
    if (size_ > 1 && count > 0) stream_comm_->enqueue_sum(data, count, stream);
  });
}

void World::check_streams(const std::string& name, Clock::time_point deadline) {
  const std::lock_guard lock(mutex_);
  if (failure_) raise(name);
  try {
    if (stream_comm_) stream_comm_->ready();
  } catch (const Error& error) {
    explain(name, error.failure());
  }
  if (!failure_) check_peers_alive(name);
  if (!failure_ && Clock::now() >= deadline) {
    die({fmt::format("{}: not done within {} ms, and NCCL does not say which rank is late", name, timeout_.count()),
         ErrorCode::kRankMissing});
  }
  if (failure_) raise(name);
}

}  // namespace muster::comm::nccl
