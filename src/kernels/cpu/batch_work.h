// Work on every matrix of a batch, shared among the threads of a pool or done by this thread alone.
#pragma once

#include <numeric>

#include "kernels/cpu/products.h"
#include "kernels/cpu/thread_pool.h"

namespace muster::kernels::cpu {

class BatchWork {
 public:
  // pool: null for this thread alone
  BatchWork(int64_t matrices, ThreadPool* pool) : matrices_(matrices), pool_(pool) {}

  // Calls f(m, task) for every matrix and task.
  template <typename F>
  void each(int64_t tasks, const F& f) const {
    const int64_t count = matrices_ * tasks;
    if (pool_ != nullptr) {
      pool_->run(count, [&](int64_t i, int) { f(i / tasks, i % tasks); });
    } else {
      for (int64_t i = 0; i < count; ++i) f(i / tasks, i % tasks);
    }
  }

  // Computes product(m) for every matrix m.
  template <typename F>
  void multiply(const F& product) const {
    // The smallest number of strips that gives every thread equally many.
    const int threads = pool_ == nullptr ? 1 : pool_->threads();
    const int strips = threads / std::gcd(threads, static_cast<int>(matrices_));
    each(tasks(product(0), strips), [&](int64_t m, int64_t task) { run(product(m), strips, task); });
  }

 private:
  int64_t matrices_;
  ThreadPool* pool_;
};

}  // namespace muster::kernels::cpu
