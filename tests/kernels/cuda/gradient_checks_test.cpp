#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "kernels/cuda/elementwise/elementwise.h"
#include "kernels/kernels.h"
#include "twin.h"

namespace muster::kernels::cuda {
namespace {

constexpr int kWords = SumOfSquares::kWords;

using Values = QueueTest;

// Values of every magnitude, subnormals included, and some NaNs and infinities if asked for.
Bytes wild_bytes(Dtype dtype, size_t count, unsigned seed, bool finite) {
  std::mt19937 random(seed);
  Bytes out(count * element_bytes(dtype));
  for (size_t i = 0; i < count; ++i) {
    auto bits = static_cast<uint32_t>(random());
    while (finite && (bits & 0x7f800000u) == 0x7f800000u) bits = static_cast<uint32_t>(random());
    if (!finite && i % 101 == 7) bits = 0xff800000u;
    if (dtype == Dtype::kF32) {
      std::memcpy(out.data() + 4 * i, &bits, 4);
    } else {
      const auto half = static_cast<uint16_t>(bits >> 16);
      std::memcpy(out.data() + 2 * i, &half, 2);
    }
  }
  return out;
}

struct Blocks {
  Blocks(Dtype dtype, bool finite) {
    for (const Extent& e : kExtents) {
      Twin& twin = twins.add(wild_bytes(dtype, e.elements(), static_cast<unsigned>(e.columns), finite));
      const size_t first = static_cast<size_t>(e.first) * element_bytes(dtype);
      here.push_back({e.rows, e.columns, twin.here(first), e.stride});
      there.push_back({e.rows, e.columns, twin.there(first), e.stride});
    }
  }
  Twins twins;
  std::vector<ValueBlock> here;
  std::vector<ValueBlock> there;
};

void add_to(SumOfSquares& sum, Dtype dtype, const ValueBlock& block) {
  if (dtype == Dtype::kF32) {
    sum.add(static_cast<const float*>(block.data), block.rows, block.columns, block.stride);
  } else {
    sum.add_bf16(static_cast<const uint16_t*>(block.data), block.rows, block.columns, block.stride);
  }
}

SumOfSquares sum_of(const std::vector<int64_t>& words) {
  SumOfSquares sum;
  std::copy(words.begin(), words.end(), sum.words().begin());
  sum.merge({});  // carries
  return sum;
}

TEST_F(Values, SumsAreExact) {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16}) {
    for (const bool finite : {true, false}) {
      const Blocks blocks(dtype, finite);
      SumOfSquares expected;
      const DeviceVector<int64_t> words(std::vector<int64_t>(kWords, 0));
      for (int twice = 0; twice < 2; ++twice) {
        for (const ValueBlock& block : blocks.here) add_to(expected, dtype, block);
        sum_squares(dtype, blocks.there, words.data(), queue());
        queue().synchronize();
        EXPECT_EQ(sum_of(words.values()).words(), expected.words());
      }
      EXPECT_EQ(expected.finite(), finite);
    }
  }
}

// The largest possible squares, all in one bin of one thread.
TEST_F(Values, BinsHaveRoom) {
  for (const uint32_t bits : {0x7f7fffffu, 0x7effffffu, 0x00ffffffu, 0x007fffffu, 0u}) {
    const std::vector<float> values(100003, std::bit_cast<float>(bits));
    const DeviceVector<float> device(values);
    const DeviceVector<int64_t> words(std::vector<int64_t>(kWords, 0));
    SumOfSquares expected;
    const auto count = static_cast<int64_t>(values.size());
    expected.add(values.data(), 1, count, count);
    const ValueBlock block{1, count, device.data(), count};
    sum_squares(Dtype::kF32, std::span(&block, 1), words.data(), queue());
    queue().synchronize();
    EXPECT_EQ(sum_of(words.values()).words(), expected.words());
  }
}

TEST_F(Values, WordsStaySmallEnoughToBeSummedOverRanks) {
  const Bytes bytes = wild_bytes(Dtype::kF32, size_t{1} << 20, 1, true);
  const DeviceVector<std::byte> device(bytes);
  const DeviceVector<int64_t> words(std::vector<int64_t>(kWords, 0));
  const ValueBlock block{1, int64_t{1} << 20, device.data(), 0};
  sum_squares(Dtype::kF32, std::span(&block, 1), words.data(), queue());
  queue().synchronize();
  for (const int64_t word : words.values()) {
    EXPECT_GE(word, 0);
    EXPECT_LT(word, int64_t{1} << (33 + 6));
  }
}

TEST_F(Values, FindsTheOneThatIsNotFinite) {
  constexpr int64_t kRows = 7;
  constexpr int64_t kColumns = 5001;
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16}) {
    for (const size_t place : {size_t{0}, size_t{3}, size_t{4999}, size_t{20000}, size_t{kRows * kColumns - 1}}) {
      for (const uint16_t bad : {uint16_t{0x7f80}, uint16_t{0xffc0}}) {  // infinity, NaN
        Bytes bytes = random_bytes(dtype, kRows * kColumns, 1);
        const DeviceVector<int64_t> count(std::vector<int64_t>(1, 0));
        for (const bool there_is : {false, true}) {
          if (there_is) std::memcpy(bytes.data() + (place + 1) * element_bytes(dtype) - 2, &bad, 2);
          const DeviceVector<std::byte> device(bytes);
          const ValueBlock block{kRows, kColumns, device.data(), kColumns};
          find_non_finite(dtype, std::span(&block, 1), count.data(), queue());
          queue().synchronize();
          EXPECT_EQ(count.values()[0] != 0, there_is);
        }
      }
    }
  }
}

TEST_F(Values, FingerprintsAreThoseOfTheCpu) {
  const auto cpu = make_cpu_kernels({.threads = 1});
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16}) {
    for (const size_t skipped : {0, 1, 3}) {  // aligned, and not
      constexpr int64_t kCount = 100'003;
      const Bytes bytes = wild_bytes(dtype, kCount + skipped, 5, false);
      const DeviceVector<std::byte> device(bytes);
      const size_t first = skipped * element_bytes(dtype);
      std::vector<int64_t> expected(4);
      const FingerprintRange here[] = {
          {kCount, bytes.data() + first, 1, 5, 3}, {7, nullptr, 0}, {9, bytes.data(), 2, 1, 1}};
      cpu->fingerprint(dtype, here, expected.data(), 3);
      const DeviceVector<int64_t> words(std::vector<int64_t>(4, 0));
      const FingerprintRange there[] = {
          {kCount, device.data() + first, 1, 5, 3}, {7, nullptr, 0}, {9, device.data(), 2, 1, 1}};
      fingerprint(dtype, there, words.data(), 3, queue());
      queue().synchronize();
      EXPECT_EQ(words.values(), expected);
    }
  }
}

TEST_F(Values, WhatLiesBetweenRowsIsNotLookedAt) {
  const std::vector<float> values(4000, std::numeric_limits<float>::quiet_NaN());
  DeviceVector<float> device(values);
  const DeviceVector<int64_t> count(std::vector<int64_t>(1, 0));
  check(cudaMemset2D(device.data(), 40 * sizeof(float), 0, 33 * sizeof(float), 100), "cudaMemset2D");
  check(cudaDeviceSynchronize(), "cudaMemset2D");
  const ValueBlock block{100, 33, device.data(), 40};
  find_non_finite(Dtype::kF32, std::span(&block, 1), count.data(), queue());
  queue().synchronize();
  EXPECT_EQ(count.values()[0], 0);
}

TEST_F(Values, NonFiniteValuesBecomeZero) {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16}) {
    const Blocks blocks(dtype, false);
    for (const ValueBlock& block : blocks.here) {
      auto* const bytes = static_cast<std::byte*>(const_cast<void*>(block.data));
      for (int64_t i = 0; i < block.rows; ++i) {
        for (int64_t j = 0; j < block.columns; ++j) {
          std::byte* const at = bytes + static_cast<size_t>(i * block.stride + j) * element_bytes(dtype);
          uint16_t top = 0;
          std::memcpy(&top, at + element_bytes(dtype) - 2, 2);
          if ((top & 0x7f80) == 0x7f80) std::memset(at, 0, element_bytes(dtype));
        }
      }
    }
    zero_non_finite(dtype, blocks.there, queue());
    queue().synchronize();
    EXPECT_EQ(blocks.twins.differing(), -1);
  }
}

}  // namespace
}  // namespace muster::kernels::cuda
