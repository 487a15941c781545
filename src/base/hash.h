// A 64-bit hash of numbers and text, the same on every machine.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace muster::base {

inline constexpr uint64_t kGolden = 0x9e3779b97f4a7c15;  // the increment of splitmix64

// The finalizer of splitmix64: every bit of the input reaches every bit of the result.
constexpr uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

class Hash {
 public:
  void add(uint64_t value) { state_ = mix(state_ + value + kGolden); }
  void add(int64_t value) { add(static_cast<uint64_t>(value)); }
  void add(int32_t value) { add(static_cast<int64_t>(value)); }
  void add(double value) { add(std::bit_cast<uint64_t>(value)); }
  void add(std::string_view text) {
    add(static_cast<uint64_t>(text.size()));
    for (const char c : text) add(static_cast<uint64_t>(static_cast<unsigned char>(c)));
  }
  void add(std::span<const std::byte> bytes) {
    add(static_cast<uint64_t>(bytes.size()));
    for (size_t i = 0; i < bytes.size(); i += sizeof(uint64_t)) {
      uint64_t word = 0;
      std::memcpy(&word, bytes.data() + i, bytes.size() - i < sizeof word ? bytes.size() - i : sizeof word);
      add(word);
    }
  }
  template <typename T>
  void add(const std::vector<T>& values) {
    add(static_cast<uint64_t>(values.size()));
    for (const T& value : values) add(value);
  }
  uint64_t value() const { return state_; }

 private:
  uint64_t state_ = 0;
};

}  // namespace muster::base
