#include "kernels/cpu/thread_pool.h"

#include <string>
#include <system_error>

#include "muster/error.h"

namespace muster::kernels::cpu {

ThreadPool::ThreadPool(int threads) {
  if (threads < 1) throw InvalidArgument("threads: " + std::to_string(threads) + ": expected at least 1");
  try {
    for (int t = 1; t < threads; ++t) workers_.emplace_back([this, t] { work(t); });
  } catch (const std::system_error& error) {
    // The destructor does not run: without this, the started threads would wait for work for ever, and the members'
    // destructors for them. 4096 threads in 4 GB of memory showed it.
    const size_t started = workers_.size() + 1;
    stop();
    throw InvalidArgument("threads: " + std::to_string(threads) + ": the system allows " + std::to_string(started) +
                          ": " + error.what());
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  start_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run_erased(int64_t count, Call call, const void* task) {
  // Waking a thread costs more than one task.
  if (workers_.empty() || count <= 1) {
    for (int64_t i = 0; i < count; ++i) call(task, i, 0);
    return;
  }
  {
    std::lock_guard lock(mutex_);
    next_ = 0;
    count_ = count;
    call_ = call;
    task_ = task;
    busy_ = static_cast<int>(workers_.size());
    ++generation_;
  }
  start_.notify_all();
  take_tasks(0);
  std::unique_lock lock(mutex_);
  done_.wait(lock, [this] { return busy_ == 0; });
}

void ThreadPool::take_tasks(int thread) {
  for (int64_t i = next_++; i < count_; i = next_++) call_(task_, i, thread);
}

void ThreadPool::work(int thread) {
  uint64_t seen = 0;
  std::unique_lock lock(mutex_);
  for (;;) {
    start_.wait(lock, [&] { return stop_ || generation_ != seen; });
    if (stop_) return;
    seen = generation_;
    lock.unlock();
    take_tasks(thread);
    lock.lock();
    if (--busy_ == 0) done_.notify_one();
  }
}

}  // namespace muster::kernels::cpu
