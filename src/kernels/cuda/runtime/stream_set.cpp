#include "kernels/cuda/runtime/stream_set.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace muster::kernels::cuda {

void StreamSet::restart() {
  next_fork_ = 0;
  current_ = main_;
}

void StreamSet::reset() {
  std::fill(std::begin(open_), std::end(open_), false);
  current_ = main_;
}

void StreamSet::follow(cudaStream_t caller) {
  new_caller_ = new_caller_ || caller_ != caller;
  caller_ = caller;
}

void StreamSet::wait_for_caller() {
  if (!caller_) return;
  check(cudaEventRecord(arrived_, *caller_), "caller's stream");
  check(cudaStreamWaitEvent(main_, arrived_, 0), "caller's stream");
}

void StreamSet::end_step(cudaEvent_t done) {
  check(cudaEventRecord(done, main_), "step");
  if (caller_) check(cudaStreamWaitEvent(*caller_, done, 0), "caller's stream");
}

cudaStream_t StreamSet::begin_graph() {
  if (!caller_) return main_;
  if (std::exchange(new_caller_, false)) {
    check(cudaEventRecord(arrived_, main_), "caller's stream");
    check(cudaStreamWaitEvent(*caller_, arrived_, 0), "caller's stream");
  }
  return *caller_;
}

void StreamSet::end_graph(cudaEvent_t done) {
  check(cudaEventRecord(done, caller_.value_or(main_)), "step");
  if (caller_) check(cudaStreamWaitEvent(main_, done, 0), "step");
}

void StreamSet::order(cudaStream_t earlier, cudaStream_t later, const char* what) {
  const cudaEvent_t event = forks_.at(next_fork_++);
  check(cudaEventRecord(event, earlier), what);
  check(cudaStreamWaitEvent(later, event, 0), what);
}

void StreamSet::lane(int lane) {
  current_ = lanes_[lane];
  if (!std::exchange(open_[lane], true)) order(main_, current_, "lane");
}

void StreamSet::join_lanes() {
  for (int i = 0; i < kLanes; ++i) {
    if (std::exchange(open_[i], false)) order(lanes_[i], main_, "lane");
  }
  current_ = main_;
}

void StreamSet::fork() { order(main_, exchange_, "fork"); }

void StreamSet::record_exchange(size_t number) {
  check(cudaEventRecord(exchanges_.at(number), exchange_), "record event");
}

void StreamSet::join_exchange(size_t number) { check(cudaStreamWaitEvent(main_, exchanges_.at(number), 0), "join"); }

void StreamSet::synchronize() {
  for (const cudaStream_t stream : all()) check(cudaStreamSynchronize(stream), "synchronize");
}

bool StreamSet::idle() {
  for (const cudaStream_t stream : all()) {
    const cudaError_t error = cudaStreamQuery(stream);
    if (error == cudaErrorNotReady) return false;
    check(error, "stream");
  }
  return true;
}

}  // namespace muster::kernels::cuda
