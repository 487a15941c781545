#include <gtest/gtest.h>

#include "kernels/cuda/elementwise/elementwise.h"
#include "twin.h"

namespace muster::kernels::cuda {
namespace {

using Copies = QueueTest;

TEST_F(Copies, RowsArriveAndNothingElseDoes) {
  for (const size_t width : {2, 4, 8}) {
    for (const size_t shift : {0, 1}) {  // of the source: the two are not aligned alike
      Twins twins;
      std::vector<CopyBlock> blocks;
      for (const Extent& e : kExtents) {
        const size_t from_first = (static_cast<size_t>(e.first) + shift) * width;
        const size_t to_first = static_cast<size_t>(e.first) * width;
        const int64_t to_stride = e.stride + 4;
        const bool zeros = e.rows == 5 || e.rows == 500;
        Twin& from = twins.add(Dtype::kBf16, (e.elements() + 1) * width / 2, 1);
        Twin& to = twins.add(Dtype::kBf16, (e.elements() + static_cast<size_t>(4 * e.rows)) * width / 2, 2);
        blocks.push_back(
            {e.rows, e.columns, zeros ? nullptr : from.there(from_first), e.stride, to.there(to_first), to_stride});
        for (int64_t i = 0; i < e.rows && e.columns > 0; ++i) {
          std::byte* const row = to.here(to_first + static_cast<size_t>(i * to_stride) * width);
          const size_t bytes = static_cast<size_t>(e.columns) * width;
          if (zeros) {
            std::memset(row, 0, bytes);
          } else {
            std::memcpy(row, from.here(from_first + static_cast<size_t>(i * e.stride) * width), bytes);
          }
        }
      }
      copy(static_cast<int64_t>(width), blocks, queue());
      queue().synchronize();
      ASSERT_EQ(twins.differing(), -1);
    }
  }
}

TEST_F(Copies, DenseRowsAreOneRow) {
  Twins twins;
  Twin& from = twins.add(Dtype::kF32, 30000, 1);
  Twin& to = twins.add(Dtype::kF32, 30000, 2);
  to.host = from.host;
  const CopyBlock block{100, 300, from.there(), 300, to.there(), 300};
  copy(4, std::span(&block, 1), queue());
  queue().synchronize();
  EXPECT_EQ(twins.differing(), -1);
}

TEST_F(Copies, OtherWidthsAreRefused) { EXPECT_THROW(copy(3, {}, queue()), Internal); }

float value_at(const Twin& twin, Dtype dtype, size_t i) {
  uint32_t bits = 0;
  if (dtype == Dtype::kF32) {
    std::memcpy(&bits, twin.host.data() + 4 * i, 4);
  } else {
    uint16_t half = 0;
    std::memcpy(&half, twin.host.data() + 2 * i, 2);
    bits = static_cast<uint32_t>(half) << 16;
  }
  return std::bit_cast<float>(bits);
}

TEST_F(Copies, AddsToSums) {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16}) {
    Twins twins;
    std::vector<AddBlock> blocks;
    for (const Extent& e : kExtents) {
      const auto first = static_cast<size_t>(e.first);
      Twin& from = twins.add(dtype, e.elements(), 1);
      Twin& to = twins.add(Dtype::kF32, e.elements(), 2);
      float* const sums = reinterpret_cast<float*>(to.here()) + first;
      blocks.push_back({e.rows, e.columns, e.rows == 9 ? nullptr : from.there(first * element_bytes(dtype)), e.stride,
                        reinterpret_cast<float*>(to.there()) + first, e.stride});
      for (int64_t i = 0; i < e.rows && e.rows != 9; ++i) {
        for (int64_t j = 0; j < e.columns; ++j) {
          sums[i * e.stride + j] += value_at(from, dtype, first + static_cast<size_t>(i * e.stride + j));
        }
      }
    }
    add(dtype, blocks, queue());
    queue().synchronize();
    ASSERT_EQ(twins.differing(), -1);
  }
}

TEST_F(Copies, DividesRanges) {
  Twins twins;
  std::vector<DivideRange> ranges;
  for (const int64_t count : {1, 5, 0, 4096, 9001}) {
    Twin& data = twins.add(Dtype::kF32, static_cast<size_t>(count) + 2, 1);
    const size_t first = count == 9001 ? 1 : 0;
    float* const values = reinterpret_cast<float*>(data.here()) + first;
    ranges.push_back({count, reinterpret_cast<float*>(data.there()) + first, 3.0F});
    for (int64_t i = 0; i < count; ++i) values[i] /= 3.0F;
  }
  divide(ranges, queue());
  queue().synchronize();
  EXPECT_EQ(twins.differing(), -1);
}

}  // namespace
}  // namespace muster::kernels::cuda
