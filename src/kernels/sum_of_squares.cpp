#include "kernels/sum_of_squares.h"

#include <algorithm>
#include <bit>

#include "kernels/sum_of_squares_value.h"

namespace muster::kernels {

// Sums of squares of mantissas by exponent, in four copies: consecutive values often share an exponent, and an addition
// would wait for the store before it.
struct SumOfSquares::Bins {
  static constexpr int kExponents = 256;
  static constexpr int kCopies = 4;
  // Additions until a bin may overflow: a square takes 48 of its 64 bits.
  static constexpr int64_t kRoom = int64_t{1} << 16;

  uint64_t sums[kCopies][kExponents] = {};
  int64_t room = kRoom;
};

template <typename Load>
void SumOfSquares::add_all(int64_t rows, int64_t columns, int64_t stride, Load load) {
  Bins bins;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t begin = 0; begin < columns;) {
      const int64_t end = std::min(columns, begin + bins.room);
      for (int64_t j = begin; j < end; ++j) {
        const uint32_t bits = load(r * stride + j) & 0x7fffffffu;
        const uint32_t exponent = bits >> 23;
        const uint64_t mantissa = (bits & 0x7fffffu) | (exponent == 0 ? 0 : 0x800000u);
        bins.sums[j % Bins::kCopies][exponent] += mantissa * mantissa;
        if (exponent == 255) [[unlikely]]
          ++words_[bits > 0x7f800000u ? kLimbs : kLimbs + 1];
      }
      bins.room -= end - begin;
      begin = end;
      if (bins.room == 0) flush(bins);
    }
  }
  flush(bins);
}

void SumOfSquares::flush(Bins& bins) {
  for (auto& copy : bins.sums) {
    for (int e = 0; e < Bins::kExponents - 1; ++e) {
      // Subnormals have the exponent of the smallest normal number.
      if (copy[e] != 0) add_at_bit(copy[e], 2 * std::max(e - 1, 0));
    }
  }
  bins = Bins{};
  propagate_carries(words_.data());
}

void SumOfSquares::add(const float* values, int64_t rows, int64_t columns, int64_t stride) {
  add_all(rows, columns, stride, [values](int64_t i) { return std::bit_cast<uint32_t>(values[i]); });
}

void SumOfSquares::add_bf16(const uint16_t* values, int64_t rows, int64_t columns, int64_t stride) {
  add_all(rows, columns, stride, [values](int64_t i) { return uint32_t{values[i]} << 16; });
}

void SumOfSquares::merge(const SumOfSquares& other) {
  for (int i = 0; i < kWords; ++i) words_[i] += other.words_[i];
  propagate_carries(words_.data());
}

void SumOfSquares::add_at_bit(uint64_t amount, int bit) {
  const int limb = bit / 32;
  const int shift = bit % 32;
  const uint64_t low = amount << shift;
  words_[limb] += static_cast<int64_t>(low & 0xffffffffu);
  words_[limb + 1] += static_cast<int64_t>(low >> 32);
  words_[limb + 2] += shift == 0 ? 0 : static_cast<int64_t>(amount >> (64 - shift));
}

double SumOfSquares::value() const {
  std::array<int64_t, kWords> words = words_;
  return value_of_words(words.data());
}

}  // namespace muster::kernels
