#include "kernels/cpu/thread_pool.h"

#include <atomic>
#include <cstdio>
#include <vector>

#include <gtest/gtest.h>
#include <sys/resource.h>

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

// Sanitizers need more address space than is left here.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(ThreadPool, SaysHowManyThreadsTheSystemAllows) {
  const auto start_too_many = [] {
    const rlimit limit{rlim_t{1} << 30, rlim_t{1} << 30};
    setrlimit(RLIMIT_AS, &limit);
    try {
      ThreadPool pool(4096);
    } catch (const InvalidArgument& error) {
      std::fputs(error.what(), stderr);
      std::_Exit(0);
    }
    std::_Exit(1);
  };
  EXPECT_EXIT(start_too_many(), testing::ExitedWithCode(0), "threads: 4096: the system allows [0-9]+: ");
}
#endif

}  // namespace
}  // namespace muster::kernels::cpu
