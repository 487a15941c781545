#include "kernels/sum_of_squares.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include <gtest/gtest.h>

#include "kernel_support.h"

namespace muster::kernels {
namespace {

// Values of every magnitude that a float can have, subnormals included.
std::vector<float> wild_values(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> values(count);
  for (float& x : values) {
    do {
      x = std::bit_cast<float>(static_cast<uint32_t>(random()));
    } while (!std::isfinite(x));
  }
  return values;
}

SumOfSquares sum_of(const std::vector<float>& values) {
  SumOfSquares sum;
  sum.add(values.data(), 1, static_cast<int64_t>(values.size()), 0);
  return sum;
}

TEST(SumOfSquares, AnyOrderAndPartitionGivesTheSameWords) {
  std::vector<float> values = wild_values(5000, 1);
  const SumOfSquares expected = sum_of(values);
  std::mt19937 random(2);
  for (int trial = 0; trial < 20; ++trial) {
    std::shuffle(values.begin(), values.end(), random);
    SumOfSquares total;
    for (size_t begin = 0; begin < values.size();) {
      const size_t count = std::min<size_t>(1 + random() % 700, values.size() - begin);
      SumOfSquares part;
      part.add(values.data() + begin, 1, static_cast<int64_t>(count), 0);
      // As an all-reduce merges: it adds words, and carries are propagated later.
      for (int w = 0; w < SumOfSquares::kWords; ++w) total.words()[w] += part.words()[w];
      begin += count;
    }
    EXPECT_EQ(total.value(), expected.value());
    total.merge({});
    EXPECT_EQ(total.words(), expected.words());
  }
}

// Integers whose squares a 64-bit integer sums exactly; scaled by powers of two over the whole range.
TEST(SumOfSquares, IsExactAndRoundsOnce) {
  std::mt19937 random(3);
  for (const int exponent : {-149, -126, -30, 0, 40, 103}) {
    uint64_t exact = 0;
    std::vector<float> values;
    for (int i = 0; i < 20000; ++i) {
      const uint32_t mantissa = random() % (1u << 24);
      exact += uint64_t{mantissa} * mantissa;
      values.push_back(std::ldexp(static_cast<float>(mantissa), exponent));
    }
    EXPECT_EQ(sum_of(values).value(), std::ldexp(static_cast<double>(exact), 2 * exponent)) << exponent;
  }
}

TEST(SumOfSquares, AgreesWithLongDouble) {
  const std::vector<float> values = random_values(300001, 4);
  long double expected = 0;
  for (float x : values) expected += static_cast<long double>(x) * static_cast<long double>(x);
  // 300001 additions in a long double lose at most 2^-64 of the sum each.
  EXPECT_NEAR(sum_of(values).value() / static_cast<double>(expected), 1, 3e-14);
}

TEST(SumOfSquares, LosesNothingBesideALargeValue) {
  // 2^100, and 2^20 times 2^40: lost one by one in any floating-point sum, 2^60 together.
  std::vector<float> values(1 << 20, 0x1p20f);
  values.insert(values.begin(), 0x1p50f);
  EXPECT_EQ(sum_of(values).value(), 0x1p100 + 0x1p60);
  // Half a unit of the last place, and a hair above it: ties to even, then up.
  EXPECT_EQ(sum_of({1.0f, 0x1p-26f, 0x1p-27f, 0x1p-27f}).value(), 1.0 + 0x1p-52 + 0x1p-53);
  EXPECT_EQ(sum_of({1.0f, std::ldexp(1.0f, -27), std::ldexp(1.0f, -27)}).value(), 1.0);
  EXPECT_EQ(sum_of({1.0f, std::ldexp(1.0f, -27), std::ldexp(1.0f, -27), std::ldexp(1.0f, -140)}).value(), 1 + 0x1p-52);
}

TEST(SumOfSquares, HoldsTheLargestAndTheSmallest) {
  const float largest = std::numeric_limits<float>::max();
  const std::vector<float> values(1 << 17, largest);
  EXPECT_EQ(sum_of(values).value(), std::ldexp(static_cast<double>(largest) * largest, 17));
  EXPECT_EQ(sum_of({std::numeric_limits<float>::denorm_min()}).value(), 0x1p-298);
  EXPECT_EQ(sum_of({}).value(), 0);
  EXPECT_EQ(sum_of({0.0f, -0.0f}).value(), 0);
}

TEST(SumOfSquares, FlagsWhatIsNotFinite) {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(sum_of({1, -inf, 2}).value(), inf);
  EXPECT_TRUE(std::isnan(sum_of({1, inf, nan}).value()));
  EXPECT_FALSE(sum_of({inf}).finite());
  EXPECT_TRUE(sum_of({1}).finite());
  SumOfSquares sum = sum_of({3});
  sum.merge(sum_of({nan}));
  EXPECT_TRUE(std::isnan(sum.value()));
}

TEST(SumOfSquares, IsTheSameForEveryThreadCountStrideAndDtype) {
  const std::vector<uint16_t> halves = to_bf16(random_values(70000 * 5, 6));
  const std::vector<float> values = from_bf16(halves);
  for (const int threads : {1, 2, 3}) {
    const auto kernels = make_cpu_kernels({.threads = threads});
    // First all at once, then in two blocks of columns with strides.
    SumOfSquares all;
    const ValueBlock whole{1, 350000, values.data(), 0};
    kernels->sum_squares(Dtype::kF32, std::span(&whole, 1), all.words().data());
    EXPECT_EQ(all.value(), sum_of(values).value());
    SumOfSquares parts;
    const std::vector<ValueBlock> blocks{{5, 30001, halves.data(), 70000}, {5, 39999, halves.data() + 30001, 70000}};
    kernels->sum_squares(Dtype::kBf16, blocks, parts.words().data());
    EXPECT_EQ(parts.value(), all.value());
  }
}

int64_t bad_in(Kernels& kernels, Dtype dtype, const ValueBlock& block) {
  int64_t count = 0;
  kernels.find_non_finite(dtype, std::span(&block, 1), &count);
  return count;
}

// The fingerprint depends on each value and its index, and not on threads or instruction sets.
TEST(Fingerprint, IsTheSameForTheSameValuesAndOtherForOthers) {
  const std::vector<float> values = random_values(100'003, 7);
  const auto print = [](Kernels& kernels, Dtype dtype, const void* data, int64_t count) {
    std::vector<int64_t> words(3);
    const FingerprintRange ranges[] = {{count, data, 1, 5, 2}, {count, nullptr, 0, 1, 1}};
    kernels.fingerprint(dtype, ranges, words.data(), 2);
    EXPECT_EQ(words[0], 0);
    EXPECT_EQ(static_cast<uint64_t>(words[1]) * 2, static_cast<uint64_t>(words[2]) * 5);
    return words[1];
  };
  const auto count = static_cast<int64_t>(values.size());
  int64_t expected = 0;
  int64_t expected_bf16 = 0;
  for (const cpu::Elementwise* set : all_elementwise()) {
    for (const int threads : {1, 2, 5}) {
      const auto kernels = cpu::make_kernels({.threads = threads}, *set);
      const int64_t mine = print(*kernels, Dtype::kF32, values.data(), count);
      const std::vector<uint16_t> halves = to_bf16(values);
      const int64_t half = print(*kernels, Dtype::kBf16, halves.data(), count);
      if (expected == 0) std::tie(expected, expected_bf16) = std::tuple{mine, half};
      EXPECT_EQ(mine, expected);
      EXPECT_EQ(half, expected_bf16);
      std::vector<float> swapped = values;
      std::swap(swapped[3], swapped[99'999]);
      EXPECT_NE(print(*kernels, Dtype::kF32, swapped.data(), count), expected);
      std::vector<float> negated = values;
      negated[17] = -negated[17];
      EXPECT_NE(print(*kernels, Dtype::kF32, negated.data(), count), expected);
    }
  }
}

TEST(NonFinite, IsFoundAndZeroedInPlace) {
  const float inf = std::numeric_limits<float>::infinity();
  for (const cpu::Elementwise* set : all_elementwise()) {
    const auto kernels = cpu::make_kernels({.threads = 2}, *set);
    for (const size_t at : {0, 15, 16, 31, 36}) {
      std::vector<float> values = random_values(37, 7);
      ValueBlock block{1, 37, values.data(), 37};
      EXPECT_EQ(bad_in(*kernels, Dtype::kF32, block), 0);
      for (const float bad : {inf, -inf, std::numeric_limits<float>::quiet_NaN()}) {
        std::vector<float> broken = values;
        broken[at] = bad;
        std::vector<float> expected = values;
        expected[at] = 0;
        block.data = broken.data();
        EXPECT_GT(bad_in(*kernels, Dtype::kF32, block), 0);
        kernels->zero_non_finite(Dtype::kF32, std::span(&block, 1));
        EXPECT_EQ(broken, expected);
        std::vector<uint16_t> halves = to_bf16(values);
        const std::vector<uint16_t> kept = to_bf16(expected);
        halves[at] = bad == bad ? to_bf16(bad) : uint16_t{0x7fc1};
        block.data = halves.data();
        EXPECT_GT(bad_in(*kernels, Dtype::kBf16, block), 0);
        kernels->zero_non_finite(Dtype::kBf16, std::span(&block, 1));
        EXPECT_EQ(halves, kept);
      }
    }
  }
}

}  // namespace
}  // namespace muster::kernels
