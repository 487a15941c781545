// The exact sum of squares of f32 or bf16 values: the same bits for every order and every partition.
//
// It is a fixed-point number that holds any sum: bit 0 is worth 2^-298, the square of the smallest f32. Two are merged
// by adding their words, so an all-reduce of int64 merges those of all ranks.
#pragma once

#include <array>
#include <cstdint>

namespace muster::kernels {

class SumOfSquares {
 public:
  static constexpr int kLimbs = 20;  // of 32 bits: 554 bits hold one square, the rest leave room for 2^86 of them
  static constexpr int kWords = kLimbs + 2;

  // Adds the squares of `rows` rows of `columns` values. Rows are `stride` elements apart.
  void add(const float* values, int64_t rows, int64_t columns, int64_t stride);
  void add_bf16(const uint16_t* values, int64_t rows, int64_t columns, int64_t stride);
  void merge(const SumOfSquares& other);

  // The limbs, then the number of NaNs and the number of infinities. After add() every limb is below 2^32, so 2^31 sums
  // can be added word by word without overflow.
  std::array<int64_t, kWords>& words() { return words_; }
  const std::array<int64_t, kWords>& words() const { return words_; }

  bool finite() const { return words_[kLimbs] == 0 && words_[kLimbs + 1] == 0; }
  // The sum, rounded once (to nearest, ties to even); NaN if a value was NaN, else infinity if a value was infinite.
  double value() const;

 private:
  struct Bins;

  template <typename Load>
  void add_all(int64_t rows, int64_t columns, int64_t stride, Load load);
  void flush(Bins& bins);
  void add_at_bit(uint64_t amount, int bit);

  std::array<int64_t, kWords> words_{};
};

}  // namespace muster::kernels
