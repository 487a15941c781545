#include "kernels/cuda/runtime/queue.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <string>
#include <utility>

namespace muster::kernels::cuda {

namespace {

constexpr int64_t kAlign = 16;
constexpr int64_t kFirstCapacity = int64_t{1} << 20;
constexpr size_t kMostGraphs = 8;

constexpr uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15;
  return hash ^ (hash >> 32);
}

// Odd and random.
constexpr auto kFactors = [] {
  std::array<uint64_t, 32> factors{};
  for (size_t i = 0; i < factors.size(); ++i) factors[i] = mix(mix(i + 1, 0x51ed270b), i) | 1;
  return factors;
}();

}  // namespace

Queue::Queue(std::optional<cudaStream_t> caller) : caller_(caller) {
  const auto make = [](cudaStream_t& stream) {
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  };
  make(main_);
  make(exchanges_);
  for (cudaStream_t& lane : lane_) make(lane);
  for (Slot& slot : slots_) {
    check(cudaEventCreateWithFlags(&slot.done, cudaEventDisableTiming), "event");
  }
  check(cudaEventCreateWithFlags(&arrived_, cudaEventDisableTiming), "event");
  check(cudaMallocHost(reinterpret_cast<void**>(&replays_.slots), kSlots * sizeof(int64_t)), "replays");
  check(cudaMalloc(reinterpret_cast<void**>(&replays_.count), sizeof(int64_t)), "replays");
  check(cudaMemsetAsync(replays_.count, 0, sizeof(int64_t), main_), "replays");
  load_carriers();
  current_ = main_;
  reserve(kFirstCapacity);
}

Queue::~Queue() {
  drop_graphs();
  cudaStreamSynchronize(main_);
  free_retired();
  for (Slot& slot : slots_) {
    cudaEventDestroy(slot.done);
    cudaFreeHost(slot.sent);
    cudaFreeHost(slot.table);
  }
  cudaFree(device_);
  cudaFree(replays_.count);
  cudaFreeHost(replays_.slots);
  for (const cudaEvent_t event : events_) cudaEventDestroy(event);
  for (const cudaEvent_t stamp : stamps_) cudaEventDestroy(stamp);
  for (const cudaStream_t lane : lane_) cudaStreamDestroy(lane);
  cudaEventDestroy(arrived_);
  cudaStreamDestroy(exchanges_);
  cudaStreamDestroy(main_);
}

void Queue::sign(const char* what, std::initializer_list<int64_t> numbers) {
  signature_ = mix(signature_, reinterpret_cast<uintptr_t>(what));
  sign(std::span(numbers.begin(), numbers.size()));
}

// A step signs thousands of numbers: multiplications that do not wait for each other, each with a factor of its own.
void Queue::sign(std::span<const int64_t> numbers) {
  uint64_t sum = numbers.size();
  for (size_t i = 0; i < numbers.size(); ++i) {
    sum += static_cast<uint64_t>(numbers[i]) * kFactors[i % kFactors.size()];
    if (i % kFactors.size() + 1 == kFactors.size()) sum = mix(sum, i);
  }
  signature_ = mix(signature_, sum);
}

bool Queue::recall(std::span<const int64_t> inputs, std::span<std::byte> given) {
  if (!probing()) return false;
  if (excerpts_.size() == next_excerpt_) excerpts_.emplace_back();
  const Excerpt& excerpt = excerpts_[next_excerpt_];
  const auto put = std::ssize(excerpt.put);
  if (excerpt.at != at_ || at_ + put > capacity_ || excerpt.given.size() != given.size()) return false;
  if (!std::ranges::equal(excerpt.inputs, inputs)) return false;
  next_excerpt_ += 1 + excerpt.within;
  std::memcpy(slots_[step_ % kInFlight].table + at_, excerpt.put.data(), excerpt.put.size());
  std::ranges::copy(excerpt.given, given.begin());
  at_ += put;
  launches_ += excerpt.launches;
  signature_ = mix(signature_, excerpt.signature);
  return true;
}

Queue::Position Queue::set_out() {
  const size_t excerpt = next_excerpt_;
  if (probing()) excerpts_[next_excerpt_++].at = -1;  // until all of it is there
  return {excerpt, at_, launches_, std::exchange(signature_, 0)};
}

void Queue::remember(std::span<const int64_t> inputs, const Position& begin, std::span<const std::byte> given) {
  if (probing()) {
    Excerpt& excerpt = excerpts_[begin.excerpt];
    const std::byte* const table = slots_[step_ % kInFlight].table;
    excerpt.inputs.assign(inputs.begin(), inputs.end());
    if (at_ <= capacity_) excerpt.put.assign(table + begin.at, table + at_);
    excerpt.given.assign(given.begin(), given.end());
    excerpt.within = next_excerpt_ - begin.excerpt - 1;
    excerpt.launches = launches_ - begin.launches;
    excerpt.signature = signature_;
    if (at_ <= capacity_) excerpt.at = begin.at;
  }
  signature_ = mix(begin.signature, signature_);
}

// Steps under way may still read what was there, and graphs would.
void Queue::reserve(int64_t bytes) {
  drop_graphs();
  excerpts_.clear();
  for (Slot& slot : slots_) {
    if (slot.table != nullptr) retired_.push_back(std::exchange(slot.table, nullptr));
    check(cudaMallocHost(reinterpret_cast<void**>(&slot.table), static_cast<size_t>(bytes)), "table");
  }
  if (device_ != nullptr) retired_device_.push_back(std::exchange(device_, nullptr));
  check(cudaMalloc(reinterpret_cast<void**>(&device_), static_cast<size_t>(bytes)), "table");
  capacity_ = bytes / kAlign * kAlign;
}

void Queue::free_retired() {
  for (std::byte* const table : std::exchange(retired_, {})) cudaFreeHost(table);
  for (std::byte* const table : std::exchange(retired_device_, {})) cudaFree(table);
}

void Queue::wait_for_caller() {
  if (!caller_) return;
  check(cudaEventRecord(arrived_, *caller_), "caller's stream");
  check(cudaStreamWaitEvent(main_, arrived_, 0), "caller's stream");
}

const std::byte* Queue::put_bytes(const void* data, int64_t bytes) {
  if (mode_ == Mode::kIdle) {
    if (at_ + bytes > capacity_ - kAlign) {
      synchronize();
      if (bytes > capacity_ - kAlign) reserve(2 * (bytes + kAlign));
      at_ = 0;
    }
    idle_work_ = true;
  } else if (mode_ == Mode::kEager && at_ + bytes > capacity_) {  // a step in parts, which no probe has measured
    reserve(2 * (capacity_ + bytes));
    spilled_ += std::exchange(at_, 0);
  }
  const int64_t at = at_;
  at_ += (bytes + kAlign - 1) / kAlign * kAlign;
  signature_ = mix(signature_, static_cast<uint64_t>(bytes));
  if (at_ > capacity_) return device_;  // only in a probe, which then fails
  std::byte* const host = slots_[step_ % kInFlight].table + at;
  std::memcpy(host, data, static_cast<size_t>(bytes));
  if (mode_ == Mode::kEager || mode_ == Mode::kIdle) {
    check(cudaMemcpyAsync(device_ + at, host, static_cast<size_t>(bytes), cudaMemcpyHostToDevice, current_), "table");
  }
  return device_ + at;
}

void Queue::take_slot() {
  ++step_;
  // The slot's last step, and what was enqueued outside steps, may still read it.
  if (std::exchange(idle_work_, false)) synchronize();
  Slot& slot = slots_[step_ % kInFlight];
  check(cudaEventSynchronize(slot.done), "step");
  slot.step = step_;
  slot.sent_view = {};
}

void Queue::start_over() {
  at_ = 0;
  signature_ = 0;
  launches_ = 0;
  next_event_ = 0;
  next_excerpt_ = 0;
  marks_.clear();
  stamp_count_ = 0;
  send_bytes_ = 0;
  current_ = main_;
}

void Queue::begin_step(bool record) {
  if (mode_ == Mode::kIdle) {
    take_slot();
    next_ = Mode::kProbe;
  }
  if (mode_ == Mode::kIdle || mode_ == Mode::kProbe) mode_ = next_;
  record_ = record;
  start_over();
  if (mode_ == Mode::kEager) wait_for_caller();
  if (mode_ == Mode::kCapture) {
    check(cudaStreamBeginCapture(main_, cudaStreamCaptureModeThreadLocal), "capture");
    carry_in(device_, {{slots_[0].table, slots_[1].table}}, probed_, replays_, main_);
  }
}

void Queue::begin_parts() {
  take_slot();
  if (spilled_ > capacity_)
    reserve(2 * spilled_);  // here, and not between parts, where allocating might wait for peers
  spilled_ = 0;
  mode_ = Mode::kEager;
  start_over();
}

bool Queue::end_step() {
  const auto found = graphs_.find(signature_);
  if (mode_ == Mode::kProbe) {
    probed_ = at_;
    if (at_ > capacity_) {
      reserve(2 * at_);
      next_ = Mode::kEager;
      return false;
    }
    if (!record_ || found == graphs_.end()) {
      next_ = record_ && seen_.contains(signature_) ? Mode::kCapture : Mode::kEager;
      return false;
    }
  }
  cudaGraphExec_t graph = nullptr;
  if (mode_ == Mode::kProbe) graph = found->second.graph;
  if (mode_ == Mode::kCapture) graph = capture_graph();
  replayed_ = mode_ == Mode::kProbe;
  mode_ = Mode::kIdle;
  Slot& slot = slots_[step_ % kInFlight];
  if (graph == nullptr) {
    seen_.insert(signature_);
    if (send_bytes_ > 0) {
      check(cudaMemcpyAsync(slot.sent, send_from_, static_cast<size_t>(send_bytes_), cudaMemcpyDeviceToHost, main_),
            "read back");
    }
    check(cudaEventRecord(slot.done, main_), "step");
    if (caller_) check(cudaStreamWaitEvent(*caller_, slot.done, 0), "caller's stream");
  } else {
    graphs_[signature_] = {graph, step_};
    start_graph(graph);
  }
  slot.sent_view = {slot.sent, static_cast<size_t>(send_bytes_)};
  if (spilled_ > 0) spilled_ += at_;
  at_ = capacity_;  // whatever comes between steps waits for this one first
  return true;
}

cudaGraphExec_t Queue::capture_graph() {
  carry_out({{slots_[0].sent, slots_[1].sent}}, send_from_, send_bytes_, replays_, main_);
  cudaGraph_t graph = nullptr;
  check(cudaStreamEndCapture(main_, &graph), "capture");
  cudaGraphExec_t executable = nullptr;
  const cudaError_t error = cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphDestroy(graph);
  check(error, "graph");
  if (graphs_.size() >= kMostGraphs) {
    const auto oldest = std::min_element(graphs_.begin(), graphs_.end(),
                                         [](const auto& a, const auto& b) { return a.second.used < b.second.used; });
    cudaGraphExecDestroy(oldest->second.graph);  // goes when it is done
    graphs_.erase(oldest);
  }
  return executable;
}

// In the caller's stream itself: none has to wait for the other first.
void Queue::start_graph(cudaGraphExec_t graph) {
  const cudaStream_t stream = caller_.value_or(main_);
  const cudaEvent_t done = slots_[step_ % kInFlight].done;
  if (caller_ && std::exchange(new_caller_, false)) {
    check(cudaEventRecord(arrived_, main_), "caller's stream");
    check(cudaStreamWaitEvent(stream, arrived_, 0), "caller's stream");
  }
  replays_.slots[started_++ % kSlots] = step_ % kInFlight;
  check(cudaGraphLaunch(graph, stream), "graph");
  check(cudaEventRecord(done, stream), "step");
  if (caller_) check(cudaStreamWaitEvent(main_, done, 0), "step");
}

void Queue::drop_graphs() {
  for (const auto& [signature, recorded] : graphs_) cudaGraphExecDestroy(recorded.graph);  // they go when they are done
  graphs_.clear();
  seen_.clear();
}

void Queue::forget() {
  if (mode_ == Mode::kCapture) {
    cudaGraph_t graph = nullptr;
    cudaStreamEndCapture(main_, &graph);
    if (graph != nullptr) cudaGraphDestroy(graph);
    cudaGetLastError();
  }
  // A step that broke off in the middle is not gone on with.
  mode_ = Mode::kIdle;
  std::fill(std::begin(lane_open_), std::end(lane_open_), false);
  current_ = main_;
  at_ = capacity_;
  drop_graphs();  // first: a communicator that is being aborted waits for them
  synchronize();
  free_retired();
  excerpts_.clear();
  started_ = 0;
  check(cudaMemsetAsync(replays_.count, 0, sizeof(int64_t), main_), "replays");
}

bool Queue::done(int64_t step) {
  const Slot& slot = slots_[step % kInFlight];
  if (slot.step > step || step == 0) return true;
  const cudaError_t error = cudaEventQuery(slot.done);
  if (error == cudaErrorNotReady) return false;
  check(error, "step");
  return true;
}

void Queue::synchronize() {
  if (mode_ == Mode::kCapture) return;
  check(cudaStreamSynchronize(main_), "synchronize");
  for (const cudaStream_t lane : lane_) check(cudaStreamSynchronize(lane), "synchronize");
  check(cudaStreamSynchronize(exchanges_), "synchronize");
}

bool Queue::idle() {
  for (const cudaStream_t stream : {main_, lane_[0], lane_[1], exchanges_}) {
    const cudaError_t error = cudaStreamQuery(stream);
    if (error == cudaErrorNotReady) return false;
    check(error, "stream");
  }
  return true;
}

cudaEvent_t Queue::event(size_t number) {
  while (events_.size() <= number) {
    events_.push_back(nullptr);
    check(cudaEventCreateWithFlags(&events_.back(), cudaEventDisableTiming), "event");
  }
  return events_[number];
}

void Queue::lane(int lane) {
  sign("lane", {lane});
  current_ = lane_[lane];
  if (std::exchange(lane_open_[lane], true) || probing()) return;
  const cudaEvent_t begin = event(next_event_++);
  check(cudaEventRecord(begin, main_), "lane");
  check(cudaStreamWaitEvent(current_, begin, 0), "lane");
}

void Queue::join_lanes() {
  for (int i = 0; i < kLanes; ++i) {
    if (!std::exchange(lane_open_[i], false) || probing()) continue;
    const cudaEvent_t end = event(next_event_++);
    check(cudaEventRecord(end, lane_[i]), "lane");
    check(cudaStreamWaitEvent(main_, end, 0), "lane");
  }
  sign("join lanes", {});
  current_ = main_;
}

cudaStream_t Queue::fork() {
  sign("fork", {});
  if (!probing()) {
    const cudaEvent_t begin = event(next_event_++);
    check(cudaEventRecord(begin, main_), "fork");
    check(cudaStreamWaitEvent(exchanges_, begin, 0), "fork");
  }
  return exchanges_;
}

int Queue::mark() {
  marks_.push_back(next_event_++);
  if (!probing()) check(cudaEventRecord(event(marks_.back()), exchanges_), "mark");
  return static_cast<int>(marks_.size()) - 1;
}

void Queue::join(int mark) {
  sign("join", {mark});
  if (!probing()) check(cudaStreamWaitEvent(main_, event(marks_[static_cast<size_t>(mark)]), 0), "join");
}

void Queue::send(const void* device, int64_t bytes) {
  if (bytes % 8 != 0) throw Internal("read back: " + std::to_string(bytes) + " bytes, expected whole 8");
  sign("send", {address(device), bytes});
  if (bytes > sent_capacity_) {  // an optimizer always sends as much: in its first step, when nothing is under way
    drop_graphs();
    for (Slot& slot : slots_) {
      cudaFreeHost(std::exchange(slot.sent, nullptr));
      check(cudaMallocHost(reinterpret_cast<void**>(&slot.sent), static_cast<size_t>(bytes)), "read back");
    }
    sent_capacity_ = bytes;
  }
  send_from_ = device;
  send_bytes_ = bytes;
}

int Queue::stamp(bool exchanges) {
  if (mode_ != Mode::kEager) return static_cast<int>(stamp_count_++);
  while (stamps_.size() <= stamp_count_) {
    stamps_.push_back(nullptr);
    check(cudaEventCreate(&stamps_.back()), "stamp");
  }
  check(cudaEventRecord(stamps_[stamp_count_], exchanges ? exchanges_ : current_), "stamp");
  return static_cast<int>(stamp_count_++);
}

// The last one is now: the host has just waited for it.
std::vector<int64_t> Queue::stamps_ns() {
  std::vector<int64_t> times;
  if (stamp_count_ == 0 || stamps_.size() < stamp_count_) return times;
  cudaEvent_t end = nullptr;
  check(cudaEventCreate(&end), "stamp");
  check(cudaEventRecord(end, main_), "stamp");
  check(cudaEventSynchronize(end), "stamp");
  const int64_t now =
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
  for (size_t i = 0; i < stamp_count_; ++i) {
    float ms = 0;
    check(cudaEventElapsedTime(&ms, stamps_[i], end), "stamp");
    times.push_back(now - static_cast<int64_t>(ms * 1e6F));
  }
  cudaEventDestroy(end);
  return times;
}

}  // namespace muster::kernels::cuda
