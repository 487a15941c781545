// Kernel launches on a device: carried out call by call, or as a step whose launches are captured once and then
// replayed with one graph launch.
//
// Kernels read their arguments from a table in device memory. A step is a sequence of upload() and launch() calls,
// which the caller makes in up to two passes. The first pass is a dry run: it fills the table on the host, computes the
// step's key and launches nothing. If the cache has a graph for the key, end_step() launches it; the graph fetches the
// table first. Otherwise the caller makes the same calls again: they are carried out the first time, and captured the
// second. A piecewise step has no dry run and is never captured.
//
// Direct calls are for a caller without steps: they run on the caller's stream itself and use none of this.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cuda_runtime_api.h>
#include <functional>
#include <initializer_list>
#include <optional>
#include <span>
#include <type_traits>
#include <vector>

#include "kernels/cuda/runtime/argument_table.h"
#include "kernels/cuda/runtime/call_memo.h"
#include "kernels/cuda/runtime/cuda_check.h"
#include "kernels/cuda/runtime/direct_arguments.h"
#include "kernels/cuda/runtime/graph_cache.h"
#include "kernels/cuda/runtime/graph_copies.h"
#include "kernels/cuda/runtime/read_back.h"
#include "kernels/cuda/runtime/step_key.h"
#include "kernels/cuda/runtime/step_timers.h"
#include "kernels/cuda/runtime/stream_set.h"

namespace muster::kernels::cuda {

class LaunchQueue {
 public:
  static constexpr int kLanes = StreamSet::kLanes;

  // For the order with the caller's stream see StreamSet.
  explicit LaunchQueue(std::optional<cudaStream_t> caller = {});
  LaunchQueue(const LaunchQueue&) = delete;
  LaunchQueue& operator=(const LaunchQueue&) = delete;
  ~LaunchQueue();

  // Returns where the values are on the device for the launches that follow. Valid until end_step().
  template <typename T>
  const T* upload(std::span<const T> values) {
    static_assert(std::is_trivially_copyable_v<T>);
    return reinterpret_cast<const T*>(upload_bytes(values.data(), static_cast<int64_t>(values.size_bytes())));
  }
  template <typename T>
  const T* upload(const T& value) {
    return upload(std::span<const T>(&value, 1));
  }

  // Calls f(stream) to enqueue something; a dry run does not. `what`, a string literal, and `numbers` distinguish this
  // launch from all others, apart from what the table holds: grids, types, and addresses that f passes by value.
  template <typename F>
  void launch(const char* what, std::initializer_list<int64_t> numbers, F&& f) {
    key_.add(what, numbers);
    ++launches_;
    if (dry_run()) return;
    if (mode_ == Mode::kIdle) idle_work_ = true;
    if (mode_ == Mode::kDirect) direct_.flush(streams_.current());
    f(streams_.current());
    check(cudaGetLastError(), what);
  }
  void add_to_key(std::span<const int64_t> numbers) { key_.add(numbers); }

  // Makes calls on this queue that `inputs` alone determine, and fills in their result. A dry run does not make them if
  // the last one made the same calls in the same place, and returns false. May be nested: see CallMemo.
  template <typename F>
  bool memoize(std::span<const int64_t> inputs, std::span<std::byte> result, F&& calls) {
    if (reuse(inputs, result)) return false;
    const MemoStart start = begin_memo();
    calls();
    end_memo(start, inputs, result);
    return true;
  }
  template <typename T, typename F>
  T memoize(std::span<const int64_t> inputs, F&& calls) {
    static_assert(std::is_trivially_copyable_v<T>);
    T result{};
    memoize(inputs, std::as_writable_bytes(std::span(&result, 1)), [&] { result = calls(); });
    return result;
  }

  // Makes room in the table for twice these calls, which are a dry run. A table that grows later drops all graphs.
  void reserve_table(const std::function<void()>& calls);

  // A step is begin_step(), its calls, and end_step(), again if that returns false. Without `capture`, it is carried
  // out call by call. Outside steps, calls are carried out as they are made, and wait for room in the table.
  void begin_step(bool capture);
  bool end_step();
  // A step whose calls come in several parts: one pass, then end_step().
  void begin_piecewise();
  // Until end_direct(), outside steps, calls are enqueued on this stream, which may be being captured. Their arguments
  // take the place of those of earlier direct calls in `memory`, on the device and aligned to 16 bytes.
  void begin_direct(cudaStream_t stream, std::span<std::byte> memory);
  void end_direct() noexcept;
  bool dry_run() const { return mode_ == Mode::kDryRun; }
  // Abandons a step that is under way, drops all graphs, and waits for everything that was enqueued.
  void drop_graphs();

  int64_t step() const { return step_; }
  bool done(int64_t step);                        // on the device; steps count from 1
  int64_t launches() const { return launches_; }  // of the last step, replayed ones included
  bool replayed() const { return replayed_; }     // the last step was a graph that an earlier step captured
  int64_t graphs() const { return static_cast<int64_t>(graphs_.size()); }

  void follow(cudaStream_t caller) { streams_.follow(caller); }
  void wait_for_caller() { streams_.wait_for_caller(); }
  void synchronize();
  bool idle() { return streams_.idle(); }
  cudaStream_t main() const { return streams_.main(); }
  cudaStream_t stream() const { return streams_.current(); }
  void lane(int lane);
  void join_lanes();
  cudaStream_t fork();   // the stream of exchanges, which waits for what main() has so far
  int record_event();    // of what was enqueued for exchanges
  void join(int event);  // main() waits for it

  // The step copies these bytes, a multiple of 8, to the host when it ends.
  void read_back(const void* device, int64_t bytes);
  std::span<const std::byte> read_back_of(int64_t step) const { return read_back_.results(step % kStepSlots); }

  int record_time(bool exchanges);
  std::vector<int64_t> times_ns() { return timers_.times_ns(main()); }

 private:
  enum class Mode : uint8_t { kIdle, kDryRun, kEager, kCapture, kDirect };

  // The state of the step where memoized calls begin.
  struct MemoStart {
    size_t entry = 0;
    int64_t position = 0;
    int64_t launches = 0;
    StepKey key;
  };

  // Calls are neither a dry run nor captured.
  bool carried_out() const { return mode_ == Mode::kIdle || mode_ == Mode::kEager; }
  int64_t slot() const { return step_ % kStepSlots; }
  void take_slot();
  void start_pass();
  bool reuse(std::span<const int64_t> inputs, std::span<std::byte> result);
  MemoStart begin_memo();
  void end_memo(const MemoStart& start, std::span<const int64_t> inputs, std::span<const std::byte> result);
  const std::byte* upload_bytes(const void* data, int64_t bytes);
  void make_room(int64_t bytes);
  void grow_table(int64_t bytes);
  bool end_dry_run();
  void capture_graph();
  void replay(cudaGraphExec_t graph);
  void end_pass();

  Mode mode_ = Mode::kIdle;
  Mode second_pass_ = Mode::kEager;
  bool may_capture_ = true;
  bool idle_work_ = false;  // something was enqueued since the last step
  bool replayed_ = false;
  int64_t step_ = 0;
  int64_t launches_ = 0;
  int exchange_events_ = 0;
  int64_t dry_run_bytes_ = 0;  // in the table, after the last dry run
  int64_t spilled_ = 0;        // bytes that a piecewise step uploaded, if the table was too small for it
  StepKey key_;

  StreamSet streams_;
  OwnedEvent done_[kStepSlots];
  ReplayCounter replay_counter_{streams_.main()};
  ArgumentTable table_;
  DirectArguments direct_;
  ReadBack read_back_;
  StepTimers timers_;
  CallMemo memo_;
  GraphCache graphs_;
};

}  // namespace muster::kernels::cuda
