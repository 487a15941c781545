#include "kernels/cuda/runtime/stream_set.h"

#include <gtest/gtest.h>

#include "queue_steps.h"

namespace muster::kernels::cuda {
namespace {

TEST_F(LaunchQueueSteps, KeepTheirOrderWhenTheCallersStreamChanges) {
  cudaStream_t streams[2];
  for (cudaStream_t& stream : streams) check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  const Model::Step step{{gradient(0), gradient(1)}};
  {
    check(cudaDeviceSynchronize(), "before the test");
    LaunchQueue queue(streams[0]);
    for (size_t i = 0; i < 20; ++i) {
      queue.follow(streams[i / 2 % 2]);
      make_step(*captured_, step, true, queue);
      make_step(*expected_, step, false, *eager_);
    }
    queue.synchronize();
    eager_->synchronize();
    EXPECT_TRUE(*captured_ == *expected_);
    EXPECT_TRUE(queue.replayed());
  }
  for (const cudaStream_t stream : streams) cudaStreamDestroy(stream);
}

}  // namespace
}  // namespace muster::kernels::cuda
