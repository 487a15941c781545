#include "support/run_ranks.h"

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace muster::test {

namespace {

void run_one(int32_t rank, const std::function<void(int32_t)>& body) {
  try {
    body(rank);
  } catch (const std::exception& error) {
    ADD_FAILURE() << "rank " << rank << ": " << error.what();
  }
}

}  // namespace

void run_ranks(int32_t ranks, const std::function<void(int32_t)>& body, std::chrono::seconds limit) {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<char> done(static_cast<size_t>(ranks), 0);
  int32_t running = ranks;

  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      run_one(rank, body);
      const std::lock_guard lock(mutex);
      done[rank] = 1;
      --running;
      changed.notify_all();
    });
  }
  {
    std::unique_lock lock(mutex);
    if (!changed.wait_for(lock, limit, [&] { return running == 0; })) {
      for (int32_t rank = 0; rank < ranks; ++rank) {
        if (!done[rank])
          std::fprintf(stderr, "run_ranks: rank %d is not done after %lld s\n", rank,
                       static_cast<long long>(limit.count()));
      }
      std::abort();
    }
  }
  for (std::thread& thread : threads) thread.join();
}

void run_ranks(int32_t ranks, const std::function<void(Communicator&)>& body, const CommOptions& options) {
  std::vector<std::unique_ptr<Communicator>> communicators = make_local_communicators(ranks, options);
  run_ranks(ranks, [&](int32_t rank) {
    const std::unique_ptr<Communicator> mine = std::move(communicators[rank]);
    body(*mine);
  });
}

}  // namespace muster::test
