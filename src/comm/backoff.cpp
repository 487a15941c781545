#include "comm/backoff.h"

#include <algorithm>
#include <chrono>
#include <thread>

namespace muster::comm {

void Backoff::pause() {
  constexpr int kSpins = 64;
  constexpr int kYields = 512;
  ++polls_;
  if (polls_ <= kSpins) return;
  if (polls_ <= kSpins + kYields) {
    std::this_thread::yield();
  } else {
    const int microseconds = std::min(20 * (polls_ - kSpins - kYields), 100);
    std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
  }
}

}  // namespace muster::comm
