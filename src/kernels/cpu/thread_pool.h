// A fixed number of threads that run numbered tasks. The calling thread is one of them.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace muster::kernels::cpu {

class ThreadPool {
 public:
  explicit ThreadPool(int threads);  // at least 1; starts threads - 1, or throws InvalidArgument
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls task(index, thread) for every index below count, on any thread, in any order, and returns when all are done.
  // Tasks must not throw, nor call run(). One run() at a time.
  template <typename Task>
  void run(int64_t count, const Task& task) {
    run_erased(
        count, [](const void* t, int64_t index, int thread) { (*static_cast<const Task*>(t))(index, thread); }, &task);
  }

 private:
  using Call = void (*)(const void* task, int64_t index, int thread);
  void run_erased(int64_t count, Call call, const void* task);
  void take_tasks(int thread);
  void work(int thread);
  void stop();

  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable start_;
  std::condition_variable done_;
  uint64_t generation_ = 0;  // counts runs; mutex_ guards it and the next two
  int busy_ = 0;
  bool stop_ = false;
  // The current run's.
  std::atomic<int64_t> next_{0};
  int64_t count_ = 0;
  Call call_ = nullptr;
  const void* task_ = nullptr;
};

}  // namespace muster::kernels::cpu
