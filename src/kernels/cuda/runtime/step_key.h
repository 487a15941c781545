// The key of a step's graph: a hash of everything that distinguishes this step's launches from another step's.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>

namespace muster::kernels::cuda {

// A pointer as one of a key's numbers.
inline int64_t address(const void* data) { return reinterpret_cast<int64_t>(data); }

constexpr uint64_t mix_hash(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15;
  return hash ^ (hash >> 32);
}

class StepKey {
 public:
  uint64_t value() const { return value_; }

  void add_word(uint64_t word) { value_ = mix_hash(value_, word); }
  // `what` is a string literal: its address is hashed, not its text.
  void add(const char* what, std::initializer_list<int64_t> numbers);
  void add(std::span<const int64_t> numbers);

 private:
  uint64_t value_ = 0;
};

}  // namespace muster::kernels::cuda
