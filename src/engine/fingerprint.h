// 64 bits that tell apart what ranks have, and sums of them that are zero where all have the same.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace muster::engine {

class Fingerprint {
 public:
  // The finalizer of splitmix64 over a running sum: every bit of the input reaches every bit of the state.
  void add(uint64_t value) {
    state_ += value + 0x9e3779b97f4a7c15;
    state_ = (state_ ^ (state_ >> 30)) * 0xbf58476d1ce4e5b9;
    state_ = (state_ ^ (state_ >> 27)) * 0x94d049bb133111eb;
    state_ ^= state_ >> 31;
  }
  void add(int64_t value) { add(static_cast<uint64_t>(value)); }
  void add(double value) { add(std::bit_cast<uint64_t>(value)); }
  void add(std::span<const std::byte> bytes) {
    add(static_cast<uint64_t>(bytes.size()));
    for (size_t i = 0; i < bytes.size(); i += sizeof(uint64_t)) {
      uint64_t word = 0;
      std::memcpy(&word, bytes.data() + i, bytes.size() - i < sizeof word ? bytes.size() - i : sizeof word);
      add(word);
    }
  }
  uint64_t value() const { return state_; }

 private:
  uint64_t state_ = 0;
};

// What member `index` of `members` adds to a sum (which wraps) that is zero if all of them have the same `value` and,
// but for a chance of 2^-64, only then.
inline int64_t ballot(uint64_t value, int32_t index, int32_t members) {
  const auto weight = [](int32_t i) {
    Fingerprint print;
    print.add(static_cast<uint64_t>(i));
    return print.value();
  };
  if (index + 1 < members) return static_cast<int64_t>(value * weight(index));
  uint64_t rest = 0;
  for (int32_t i = 0; i + 1 < members; ++i) rest -= weight(i);
  return static_cast<int64_t>(value * rest);
}

}  // namespace muster::engine
