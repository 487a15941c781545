// The order of work on a device, and a step that is recorded once and replayed.
//
// Kernels read what they are given (pointers, strides, hyperparameters) from a table in device memory. A step is made
// of put() and launch(), twice if need be. The first pass fills the table on the host and takes a fingerprint of the
// launches. If a graph of that fingerprint is there, which fetches the table first of all, it is started: that is the
// step. If not, the same calls are made again: carried out one by one the first time, captured into a graph the second.
// A step that comes in parts is neither probed nor recorded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <cuda_runtime_api.h>
#include <initializer_list>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/cuda/runtime/cuda_check.h"
#include "kernels/cuda/runtime/graph_io.h"

namespace muster::kernels::cuda {

// As one of the numbers that a launch is known by.
inline int64_t address(const void* data) { return reinterpret_cast<int64_t>(data); }

class Queue {
 public:
  static constexpr int kLanes = 2;
  static constexpr int64_t kInFlight = kSlots;  // steps that may be under way

  // With a caller's stream: a step begins after what is enqueued there, and what is enqueued there next waits for it.
  // A graph is started there.
  explicit Queue(std::optional<cudaStream_t> caller = {});
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;
  ~Queue();

  // Where the values are on the device for what is launched next. A step's worth: valid until end_step().
  template <typename T>
  const T* put(std::span<const T> values) {
    static_assert(std::is_trivially_copyable_v<T>);
    return reinterpret_cast<const T*>(put_bytes(values.data(), static_cast<int64_t>(values.size_bytes())));
  }
  template <typename T>
  const T* put(const T& value) {
    return put(std::span<const T>(&value, 1));
  }

  // Calls f(stream) to enqueue something. `what` and `numbers` are all that distinguishes this launch from others, the
  // table's contents aside: grids, types, and addresses that f hands over by value.
  template <typename F>
  void launch(const char* what, std::initializer_list<int64_t> numbers, F&& f) {
    sign(what, numbers);
    ++launches_;
    if (probing()) return;
    if (mode_ == Mode::kIdle) idle_work_ = true;
    f(current_);
    check(cudaGetLastError(), what);
  }
  void sign(const char* what, std::initializer_list<int64_t> numbers);
  void sign(std::span<const int64_t> numbers);

  // Calls that are decided by `inputs` alone, and what they give. A probe makes them only if it must: not where the
  // last one had the same inputs at the same place of its table. Such calls may be within others. False: they were not
  // made.
  template <typename F>
  bool once(std::span<const int64_t> inputs, std::span<std::byte> given, F&& f) {
    if (recall(inputs, given)) return false;
    const Position begin = set_out();
    f();
    remember(inputs, begin, given);
    return true;
  }
  template <typename T, typename F>
  T once(std::span<const int64_t> inputs, F&& f) {
    static_assert(std::is_trivially_copyable_v<T>);
    T given{};
    once(inputs, std::as_writable_bytes(std::span(&given, 1)), [&] { given = f(); });
    return given;
  }

  // For calls such as these, which are not carried out: a table that grows later takes all graphs with it.
  template <typename F>
  void make_room(F&& calls) {
    if (std::exchange(idle_work_, false)) synchronize();
    mode_ = Mode::kProbe;
    start_over();
    calls();
    mode_ = Mode::kIdle;
    if (2 * at_ > capacity_) reserve(2 * at_);
    at_ = capacity_;
  }
  // Outside a step calls are carried out as they are made, and wait for room in the table.
  void begin_step(bool record);
  void begin_parts();
  bool end_step();  // false: to be made again
  bool probing() const { return mode_ == Mode::kProbe; }
  bool capturing() const { return mode_ == Mode::kCapture; }
  void forget();
  int64_t step() const { return step_; }
  bool done(int64_t step);
  bool idle();
  void follow(cudaStream_t caller) {
    new_caller_ = new_caller_ || caller_ != caller;
    caller_ = caller;
  }
  void wait_for_caller();
  void synchronize();                             // the host waits for everything
  int64_t launches() const { return launches_; }  // of the last step, replayed ones included
  bool replayed() const { return replayed_; }     // so was the last step
  int64_t graphs() const { return static_cast<int64_t>(graphs_.size()); }

  cudaStream_t main() const { return main_; }
  cudaStream_t stream() const { return current_; }
  void lane(int lane);
  void join_lanes();

  cudaStream_t fork();
  int mark();
  void join(int mark);

  // Copied to the host after the step, from the device: whole 8 bytes.
  void send(const void* device, int64_t bytes);
  std::span<const std::byte> sent(int64_t step) const { return slots_[step % kInFlight].sent_view; }

  int stamp(bool exchanges);
  std::vector<int64_t> stamps_ns();

 private:
  enum class Mode : uint8_t { kIdle, kProbe, kEager, kCapture };

  // What one step in flight has to itself.
  struct Slot {
    std::byte* table = nullptr;  // pinned
    std::byte* sent = nullptr;   // pinned
    std::span<const std::byte> sent_view;
    cudaEvent_t done = nullptr;
    int64_t step = 0;
  };

  // In a step's calls.
  struct Position {
    size_t excerpt = 0;
    int64_t at = 0;  // in the table
    int64_t launches = 0;
    uint64_t signature = 0;
  };
  // What calls did that may be recalled.
  struct Excerpt {
    std::vector<int64_t> inputs;
    int64_t at = -1;
    std::vector<std::byte> put;
    std::vector<std::byte> given;
    size_t within = 0;  // excerpts of calls within these
    int64_t launches = 0;
    uint64_t signature = 0;
  };

  void take_slot();
  void start_over();
  bool recall(std::span<const int64_t> inputs, std::span<std::byte> given);
  Position set_out();
  void remember(std::span<const int64_t> inputs, const Position& begin, std::span<const std::byte> given);
  const std::byte* put_bytes(const void* data, int64_t bytes);
  void reserve(int64_t bytes);
  void drop_graphs();
  void free_retired();
  cudaEvent_t event(size_t number);
  cudaGraphExec_t capture_graph();
  void start_graph(cudaGraphExec_t graph);

  std::optional<cudaStream_t> caller_;
  bool new_caller_ = false;        // has not waited for steps in the last one's stream
  cudaEvent_t arrived_ = nullptr;  // the caller's stream, where a step begins
  cudaStream_t main_ = nullptr;
  cudaStream_t exchanges_ = nullptr;
  cudaStream_t lane_[kLanes]{};
  cudaStream_t current_ = nullptr;
  bool lane_open_[kLanes]{};

  Mode mode_ = Mode::kIdle;
  Mode next_ = Mode::kProbe;  // after a probe that found no graph
  bool record_ = true;
  bool idle_work_ = false;  // was enqueued between steps
  bool replayed_ = false;
  int64_t step_ = 0;
  int64_t launches_ = 0;
  uint64_t signature_ = 0;
  struct Recorded {
    cudaGraphExec_t graph = nullptr;
    int64_t used = 0;  // in this step last
  };
  std::map<uint64_t, Recorded> graphs_;  // by signature
  std::set<uint64_t> seen_;
  std::vector<Excerpt> excerpts_;  // in the order of the last probe's calls
  size_t next_excerpt_ = 0;

  int64_t capacity_ = 0;
  int64_t at_ = 0;
  int64_t probed_ = 0;   // what the last probe has put
  int64_t spilled_ = 0;  // what a step in parts has put, if its table was too small
  std::byte* device_ = nullptr;
  Slot slots_[kInFlight];
  Replays replays_;
  int64_t started_ = 0;                     // replays
  std::vector<std::byte*> retired_;         // pinned tables that copies may still read
  std::vector<std::byte*> retired_device_;  // and their copies
  int64_t sent_capacity_ = 0;
  const void* send_from_ = nullptr;
  int64_t send_bytes_ = 0;

  std::vector<cudaEvent_t> events_;  // without times
  size_t next_event_ = 0;
  std::vector<size_t> marks_;
  std::vector<cudaEvent_t> stamps_;
  size_t stamp_count_ = 0;
};

}  // namespace muster::kernels::cuda
