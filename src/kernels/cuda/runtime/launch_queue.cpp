#include "kernels/cuda/runtime/launch_queue.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "muster/error.h"

namespace muster::kernels::cuda {

LaunchQueue::LaunchQueue(std::optional<cudaStream_t> caller) : streams_(caller) {}

LaunchQueue::~LaunchQueue() {
  graphs_.drop();
  cudaStreamSynchronize(main());
}

// Steps.

void LaunchQueue::begin_step(bool capture) {
  may_capture_ = capture;
  if (mode_ == Mode::kIdle) {
    take_slot();
    mode_ = Mode::kDryRun;
  } else if (mode_ == Mode::kDryRun) {
    mode_ = second_pass_;
  }
  start_pass();
  if (mode_ == Mode::kEager) wait_for_caller();
  if (mode_ == Mode::kCapture) {
    check(cudaStreamBeginCapture(main(), cudaStreamCaptureModeThreadLocal), "capture");
    table_.fetch(dry_run_bytes_, replay_counter_.slots(), main());
  }
}

// Here is where the table grows, and not between the parts: allocating there might wait for peers.
void LaunchQueue::begin_piecewise() {
  take_slot();
  if (spilled_ > table_.capacity()) grow_table(2 * spilled_);
  spilled_ = 0;
  mode_ = Mode::kEager;
  start_pass();
}

void LaunchQueue::begin_direct(cudaStream_t stream, std::span<std::byte> memory) {
  if (mode_ != Mode::kIdle) throw Internal("direct calls in a step");
  mode_ = Mode::kDirect;
  streams_.use(stream);
  direct_.start(memory.data(), std::ssize(memory));
}

void LaunchQueue::end_direct() noexcept {
  mode_ = Mode::kIdle;
  streams_.restart();
}

bool LaunchQueue::end_step() {
  if (mode_ == Mode::kDryRun) return end_dry_run();
  replayed_ = false;
  if (mode_ == Mode::kCapture) {
    capture_graph();
  } else {
    graphs_.mark_seen(key_.value());
    mode_ = Mode::kIdle;
    read_back_.copy(slot(), main());
    streams_.end_step(done_[slot()]);
  }
  end_pass();
  return true;
}

// The slot's last step, and calls between steps, may still read the slot.
void LaunchQueue::take_slot() {
  if (std::exchange(idle_work_, false)) synchronize();
  check(cudaEventSynchronize(done_[(step_ + 1) % kStepSlots]), "step");
  ++step_;
  read_back_.clear(slot());
}

void LaunchQueue::start_pass() {
  table_.start(slot());
  key_ = {};
  launches_ = 0;
  exchange_events_ = 0;
  streams_.restart();
  memo_.restart();
  timers_.restart();
  read_back_.restart();
}

bool LaunchQueue::end_dry_run() {
  dry_run_bytes_ = table_.used();
  second_pass_ = Mode::kEager;
  if (table_.overflowed()) {
    grow_table(2 * table_.used());
    return false;
  }
  if (!may_capture_) return false;
  const cudaGraphExec_t graph = graphs_.use(key_.value(), step_);
  if (graph == nullptr) {
    if (graphs_.seen(key_.value())) second_pass_ = Mode::kCapture;
    return false;
  }
  mode_ = Mode::kIdle;
  replayed_ = true;
  replay(graph);
  end_pass();
  return true;
}

void LaunchQueue::capture_graph() {
  read_back_.store(replay_counter_.slots(), main());
  cudaGraph_t graph = nullptr;
  check(cudaStreamEndCapture(main(), &graph), "capture");
  cudaGraphExec_t executable = nullptr;
  const cudaError_t error = cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphDestroy(graph);
  check(error, "graph");
  graphs_.insert(key_.value(), executable, step_);
  mode_ = Mode::kIdle;
  replay(executable);
}

void LaunchQueue::replay(cudaGraphExec_t graph) {
  const cudaStream_t stream = streams_.begin_graph();
  replay_counter_.announce(slot());
  check(cudaGraphLaunch(graph, stream), "graph");
  streams_.end_graph(done_[slot()]);
}

void LaunchQueue::end_pass() {
  read_back_.finish(slot());
  if (spilled_ > 0) spilled_ += table_.used();
  table_.fill_up();  // calls between steps wait for this step before they use the table
}

void LaunchQueue::drop_graphs() {
  if (mode_ == Mode::kCapture) {
    cudaGraph_t graph = nullptr;
    cudaStreamEndCapture(main(), &graph);
    if (graph != nullptr) cudaGraphDestroy(graph);
    cudaGetLastError();
  }
  mode_ = Mode::kIdle;
  streams_.reset();
  table_.fill_up();
  graphs_.drop();  // before waiting: a communicator that is being aborted waits for them
  synchronize();
  table_.free_retired();
  memo_.clear();
  replay_counter_.restart(main());
}

bool LaunchQueue::done(int64_t step) {
  if (step == 0 || step + kStepSlots <= step_) return true;  // the slot's next step has waited for it
  const cudaError_t error = cudaEventQuery(done_[step % kStepSlots]);
  if (error == cudaErrorNotReady) return false;
  check(error, "step");
  return true;
}

void LaunchQueue::synchronize() {
  if (mode_ != Mode::kCapture) streams_.synchronize();
}

// Arguments.

const std::byte* LaunchQueue::upload_bytes(const void* data, int64_t bytes) {
  if (mode_ == Mode::kDirect) return direct_.append(data, bytes);
  if (carried_out()) make_room(bytes);
  key_.add_word(static_cast<uint64_t>(bytes));
  std::byte* const device = table_.append(data, bytes);
  if (carried_out()) table_.copy(device, bytes, stream());
  return device;
}

void LaunchQueue::make_room(int64_t bytes) {
  if (mode_ == Mode::kIdle) {
    idle_work_ = true;
    constexpr int64_t kSpare = ArgumentTable::kAlign;
    if (table_.fits(bytes + kSpare)) return;
    synchronize();
    if (bytes + kSpare > table_.capacity()) grow_table(2 * (bytes + kSpare));
    table_.start(slot());
  } else if (!table_.fits(bytes)) {  // in a piecewise step, which no dry run has measured
    grow_table(2 * (table_.capacity() + bytes));
    spilled_ += table_.used();
    table_.start(slot());
  }
}

// Graphs and memoized calls have addresses in the old table.
void LaunchQueue::grow_table(int64_t bytes) {
  graphs_.drop();
  memo_.clear();
  table_.grow(bytes);
}

void LaunchQueue::reserve_table(const std::function<void()>& calls) {
  if (std::exchange(idle_work_, false)) synchronize();
  mode_ = Mode::kDryRun;
  start_pass();
  calls();
  mode_ = Mode::kIdle;
  if (2 * table_.used() > table_.capacity()) grow_table(2 * table_.used());
  table_.fill_up();
}

// Memoized calls.

bool LaunchQueue::reuse(std::span<const int64_t> inputs, std::span<std::byte> result) {
  if (!dry_run()) return false;
  const CallMemo::Entry* const entry = memo_.find(inputs, table_.used(), result.size());
  if (entry == nullptr) return false;
  table_.append(entry->arguments.data(), std::ssize(entry->arguments));
  std::ranges::copy(entry->result, result.begin());
  launches_ += entry->launches;
  key_.add_word(entry->key);
  return true;
}

LaunchQueue::MemoStart LaunchQueue::begin_memo() {
  return {dry_run() ? memo_.open() : 0, table_.used(), launches_, std::exchange(key_, {})};
}

void LaunchQueue::end_memo(const MemoStart& start, std::span<const int64_t> inputs, std::span<const std::byte> result) {
  const uint64_t key = std::exchange(key_, start.key).value();
  key_.add_word(key);
  if (!dry_run() || table_.overflowed()) return;
  CallMemo::Entry& entry = memo_.close(start.entry, inputs, start.position);
  const std::span<const std::byte> arguments = table_.appended(start.position);
  entry.arguments.assign(arguments.begin(), arguments.end());
  entry.result.assign(result.begin(), result.end());
  entry.launches = launches_ - start.launches;
  entry.key = key;
}

// Streams: a dry run only adds to the key.

void LaunchQueue::lane(int lane) {
  key_.add("lane", {lane});
  if (!dry_run()) streams_.lane(lane);
}

void LaunchQueue::join_lanes() {
  key_.add("join lanes", {});
  if (!dry_run()) streams_.join_lanes();
}

cudaStream_t LaunchQueue::fork() {
  key_.add("fork", {});
  if (!dry_run()) streams_.fork();
  return streams_.exchange();
}

int LaunchQueue::record_event() {
  const int event = exchange_events_++;
  if (!dry_run()) streams_.record_exchange(static_cast<size_t>(event));
  return event;
}

void LaunchQueue::join(int event) {
  key_.add("join", {event});
  if (!dry_run()) streams_.join_exchange(static_cast<size_t>(event));
}

// Results.

// Buffers grow in an optimizer's first step only, when no copy is under way: all of its steps read back as much.
void LaunchQueue::read_back(const void* device, int64_t bytes) {
  if (bytes % 8 != 0) throw Internal("read back: " + std::to_string(bytes) + " bytes, expected whole 8");
  key_.add("read back", {address(device), bytes});
  if (!read_back_.fits(bytes)) {
    graphs_.drop();
    read_back_.reserve(bytes);
  }
  read_back_.request(device, bytes);
}

int LaunchQueue::record_time(bool exchanges) {
  if (mode_ != Mode::kEager) return timers_.skip();
  return timers_.record(exchanges ? streams_.exchange() : streams_.current());
}

}  // namespace muster::kernels::cuda
