// Work that is done in its order, some time later, by a thread: what a stream is to a device.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

namespace muster::test {

class HostQueue {
 public:
  using Work = std::function<void()>;

  HostQueue() : thread_([this] { run(); }) {}
  HostQueue(const HostQueue&) = delete;
  HostQueue& operator=(const HostQueue&) = delete;
  ~HostQueue() {
    add({});
    thread_.join();
  }

  void add(Work work) {
    const std::lock_guard lock(mutex_);
    todo_.push_back(std::move(work));
    ++added_;
    changed_.notify_all();
  }

  // Calling it waits for what was added so far.
  Work arrived() {
    const std::lock_guard lock(mutex_);
    return [this, added = added_] { wait_for(added); };
  }
  void wait() { arrived()(); }
  bool idle() {
    const std::lock_guard lock(mutex_);
    return done_ == added_;
  }

  // What work has thrown; no other is done until it is forgiven.
  std::string error() {
    const std::lock_guard lock(mutex_);
    return error_;
  }
  void forgive() {
    const std::lock_guard lock(mutex_);
    error_.clear();
  }

 private:
  void wait_for(int64_t number) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_ >= number; });
  }

  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return !todo_.empty(); });
      Work work = std::move(todo_.front());
      todo_.pop_front();
      if (!work) return;
      if (error_.empty()) {
        lock.unlock();
        std::string error;
        try {
          work();
        } catch (const std::exception& thrown) {
          error = thrown.what();
        }
        work = nullptr;
        lock.lock();
        error_ += error;
      }
      ++done_;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Work> todo_;
  int64_t added_ = 0;
  int64_t done_ = 0;
  std::string error_;
  std::thread thread_;  // last: it uses the rest
};

}  // namespace muster::test
