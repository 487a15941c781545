#include "kernels/cuda/runtime/step_key.h"

#include <algorithm>
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
  for (size_t begin = 0; begin < numbers.size(); begin += kFactors.size()) {
    const size_t count = std::min(kFactors.size(), numbers.size() - begin);
    for (size_t i = 0; i < count; ++i) sum += static_cast<uint64_t>(numbers[begin + i]) * kFactors[i];
    if (count == kFactors.size()) sum = mix_hash(sum, begin);
  }
  add_word(sum);
}

}  // namespace muster::kernels::cuda
