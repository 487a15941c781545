// Waits between polls: short at first, then longer, never more than a tenth of a millisecond.
#pragma once

#include <chrono>
#include <thread>

namespace muster::comm {

class Backoff {
 public:
  void pause() {
    constexpr int kSpins = 64;
    constexpr int kYields = 512;
    constexpr int kLongest = 5;  // steps of 20 us
    if (polls_ < kSpins + kYields + kLongest) ++polls_;
    if (polls_ <= kSpins) return;
    if (polls_ <= kSpins + kYields) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(20 * (polls_ - kSpins - kYields)));
    }
  }
  void reset() { polls_ = 0; }

 private:
  int polls_ = 0;
};

}  // namespace muster::comm
