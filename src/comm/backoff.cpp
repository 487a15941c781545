#include "comm/backoff.h"

#include <chrono>
#include <thread>

namespace muster::comm {

void Backoff::pause() {
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

}  // namespace muster::comm
