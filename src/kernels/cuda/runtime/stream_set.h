// The streams of a step, and their order with each other and with the caller's stream.
#pragma once

#include <array>
#include <cstddef>
#include <cuda_runtime_api.h>
#include <optional>

#include "kernels/cuda/runtime/cuda_handles.h"

namespace muster::kernels::cuda {

// Kernels run on main() or, between lane() and join_lanes(), on one of kLanes lanes; exchanges run on exchange(). A
// step begins and ends on main(): lanes and exchanges branch off from it and are joined to it again.
//
// With a caller's stream, a step begins after what is enqueued there, and what is enqueued there next waits for the
// step. Steps that are carried out call by call run on main(); a graph runs on the caller's stream itself, if there is
// one, so that neither stream waits for the other before it starts.
class StreamSet {
 public:
  static constexpr int kLanes = 2;

  explicit StreamSet(std::optional<cudaStream_t> caller) : caller_(caller) {}

  cudaStream_t main() const { return main_; }
  cudaStream_t exchange() const { return exchange_; }
  cudaStream_t current() const { return current_; }  // main, the lane chosen last, or use()

  // Before each pass of a step: events are numbered from 0 again, and main is current.
  void restart();
  // A stream of the caller is current until restart(), in no order with the others.
  void use(cudaStream_t stream) { current_ = stream; }
  // After a step that was abandoned in the middle: no lane is open.
  void reset();

  void follow(cudaStream_t caller);
  void wait_for_caller();
  // After the last work on main: records `done`, for which the caller's stream waits.
  void end_step(cudaEvent_t done);
  // The stream on which to launch a graph, and then, after the launch, the same as end_step().
  cudaStream_t begin_graph();
  void end_graph(cudaEvent_t done);

  void lane(int lane);  // a lane that is opened waits for what main has so far
  void join_lanes();    // main waits for the open lanes
  void fork();          // exchange() waits for what main has so far
  void record_exchange(size_t number);
  void join_exchange(size_t number);  // main waits for what record_exchange(number) saw

  void synchronize();  // the host waits for all but the caller's stream
  bool idle();

 private:
  std::array<cudaStream_t, kLanes + 2> all() const { return {main_, lanes_[0], lanes_[1], exchange_}; }
  // `later` waits for what `earlier` has so far.
  void order(cudaStream_t earlier, cudaStream_t later, const char* what);

  std::optional<cudaStream_t> caller_;
  bool new_caller_ = false;  // steps enqueued before may still run on the previous caller's stream
  OwnedStream main_;
  OwnedStream exchange_;
  OwnedStream lanes_[kLanes];
  cudaStream_t current_ = main_;
  bool open_[kLanes]{};
  OwnedEvent arrived_;
  EventPool forks_;
  size_t next_fork_ = 0;
  EventPool exchanges_;
};

}  // namespace muster::kernels::cuda
