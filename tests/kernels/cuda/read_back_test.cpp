#include "kernels/cuda/runtime/read_back.h"

#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cuda/runtime/launch_queue.h"
#include "twin.h"

namespace muster::kernels::cuda {
namespace {

using ReadBackTest = QueueTest;

// Carried out, captured or replayed, while other steps are under way.
TEST_F(ReadBackTest, ResultsAreThoseOfTheirOwnStep) {
  LaunchQueue own;  // without a caller's stream
  for (LaunchQueue* const queue : {&this->queue(), &own}) {
    constexpr size_t kWords = 300;
    const DeviceVector<int64_t> words(kWords);
    check(cudaDeviceSynchronize(), "before the test");
    const auto number_of = [](int64_t step) { return 1000 + step * step; };
    const auto expect_results = [&](int64_t step) {
      while (!queue->done(step)) {
      }
      const std::span<const std::byte> results = queue->read_back_of(step);
      ASSERT_EQ(results.size(), kWords * sizeof(int64_t));
      std::vector<int64_t> values(kWords);
      std::memcpy(values.data(), results.data(), results.size());
      EXPECT_EQ(values, std::vector<int64_t>(kWords, number_of(step))) << step;
    };
    int64_t replayed = 0;
    for (int64_t step = 1; step <= 20; ++step) {
      const std::vector<int64_t> values(kWords, number_of(step));
      do {
        queue->begin_step(step % 5 != 0);
        const int64_t* const from = queue->upload(std::span<const int64_t>(values));
        queue->launch("copy", {address(words.data())}, [&](cudaStream_t stream) {
          check(cudaMemcpyAsync(words.data(), from, kWords * sizeof(int64_t), cudaMemcpyDeviceToDevice, stream),
                "copy");
        });
        queue->read_back(words.data(), static_cast<int64_t>(kWords * sizeof(int64_t)));
      } while (!queue->end_step());
      replayed += queue->replayed() ? 1 : 0;
      if (step == 13) queue->drop_graphs();
      if (step > 1) expect_results(step - 1);
    }
    expect_results(20);
    EXPECT_EQ(replayed, 12);
  }
}

}  // namespace
}  // namespace muster::kernels::cuda
