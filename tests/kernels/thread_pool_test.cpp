#include "kernels/cpu/thread_pool.h"

#include <atomic>
#include <vector>

#include <gtest/gtest.h>

#include "muster/error.h"

namespace muster::kernels::cpu {
namespace {

TEST(ThreadPool, RunsEveryTaskOnceOnAThreadItHas) {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (const int64_t count : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> calls(static_cast<size_t>(count));
      std::atomic<bool> known{true};
      pool.run(count, [&](int64_t i, int thread) {
        ++calls[static_cast<size_t>(i)];
        if (thread < 0 || thread >= threads) known = false;
      });
      for (const auto& n : calls) EXPECT_EQ(n, 1);
      EXPECT_TRUE(known);
    }
  }
}

TEST(ThreadPool, ManyRunsFollowEachOther) {
  ThreadPool pool(3);
  int64_t sum = 0;
  for (int run = 0; run < 2000; ++run) {
    std::atomic<int64_t> part{0};
    pool.run(4, [&](int64_t i, int) { part += i; });
    sum += part;
  }
  EXPECT_EQ(sum, 2000 * 6);
}

TEST(ThreadPool, NeedsAThread) { EXPECT_THROW(ThreadPool(0), InvalidArgument); }

}  // namespace
}  // namespace muster::kernels::cpu
