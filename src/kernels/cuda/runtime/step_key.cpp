#include "kernels/cuda/runtime/step_key.h"

#include <array>
#include <cstddef>

namespace muster::kernels::cuda {

namespace {

// Odd and random.
constexpr auto kFactors = [] {
  std::array<uint64_t, 32> factors{};
  for (size_t i = 0; i < factors.size(); ++i) factors[i] = mix_hash(mix_hash(i + 1, 0x51ed270b), i) | 1;
  return factors;
}();

}  // namespace

void StepKey::add(const char* what, std::initializer_list<int64_t> numbers) {
  add_word(reinterpret_cast<uintptr_t>(what));
  add(std::span(numbers.begin(), numbers.size()));
}

// A step adds thousands of numbers. Each has its own factor, so the multiplications do not wait for each other.
void StepKey::add(std::span<const int64_t> numbers) {
  uint64_t sum = numbers.size();
  for (size_t i = 0; i < numbers.size(); ++i) {
    sum += static_cast<uint64_t>(numbers[i]) * kFactors[i % kFactors.size()];
    if (i % kFactors.size() + 1 == kFactors.size()) sum = mix_hash(sum, i);
  }
  add_word(sum);
}

}  // namespace muster::kernels::cuda
