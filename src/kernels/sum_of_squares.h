// The exact sum of squares of f32 (and bf16) values: the same bits for every order and every partition.
//
// A fixed-point number wide enough for any sum: bit 0 is worth 2^-298, the square of the smallest f32. Merging two is
// adding their words, so an all-reduce of int64 merges those of many ranks.
#pragma once

#include <array>
#include <cstdint>

namespace muster::kernels {

class SumOfSquares {
 public:
  static constexpr int kLimbs = 20;  // of 32 bits each: 554 for one square, the rest for the count
  static constexpr int kWords = kLimbs + 2;

  // The squares of `rows` rows of `columns` values, `stride` apart.
  void add(const float* values, int64_t rows, int64_t columns, int64_t stride);
  void add_bf16(const uint16_t* values, int64_t rows, int64_t columns, int64_t stride);
  void merge(const SumOfSquares& other);

  // Limbs, then how many NaNs and how many infinities. After add() every limb is below 2^32, so 2^31 of them can be
  // added word by word before they overflow.
  std::array<int64_t, kWords>& words() { return words_; }
  const std::array<int64_t, kWords>& words() const { return words_; }

  bool finite() const { return words_[kLimbs] == 0 && words_[kLimbs + 1] == 0; }
  // The sum, rounded once (to nearest, ties to even). NaN or infinity where there were any.
  double value() const;

 private:
  struct Bins;

  template <typename Load>
  void add_all(int64_t rows, int64_t columns, int64_t stride, Load load);
  void flush(Bins& bins);
  void add_at_bit(uint64_t amount, int bit);
  void carry();

  std::array<int64_t, kWords> words_{};
};

}  // namespace muster::kernels
