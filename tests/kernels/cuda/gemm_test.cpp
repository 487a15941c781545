#include "kernels/cuda/gemm_sm90/gemm.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "device_memory.h"
#include "kernels/cuda/newton_schulz/cuda_cublas.h"
#include "muster/error.h"

namespace muster::kernels::cuda {
namespace {

struct Case {
  int64_t rows;
  int64_t columns;
  int64_t inner;
  int64_t batch;
  bool a_transposed;
  bool b_transposed;
  bool symmetric;
  bool beta;
};

class GemmTest : public DeviceTest, public testing::WithParamInterface<Case> {};

float to_float(Half type, uint16_t bits) {
  if (type == Half::kBf16) return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  return __half2float(std::bit_cast<__half>(bits));
}
uint16_t to_half(Half type, float value) {
  if (type == Half::kF16) return std::bit_cast<uint16_t>(__float2half(value));
  return std::bit_cast<uint16_t>(__float2bfloat16(value));
}

// A batch of padded matrices in host memory.
struct Operand {
  Operand(Half type, int64_t rows, int64_t columns, int64_t batch, std::mt19937& random)
      : pitch((columns + 7) / 8 * 8 + 8), bits(static_cast<size_t>(batch * rows * pitch)) {
    std::normal_distribution<float> normal(0, 0.1F);
    for (uint16_t& value : bits) value = to_half(type, normal(random));
    shape = {nullptr, rows, columns, pitch, rows * pitch};
  }
  double at(Half type, int64_t matrix, int64_t i, int64_t j) const {
    return static_cast<double>(to_float(type, bits[static_cast<size_t>(matrix * shape.stride + i * pitch + j)]));
  }
  int64_t pitch;
  std::vector<uint16_t> bits;
  Matrices shape;
};

// The operands only nearly commute. What is above the diagonal is a copy, or asymmetry would grow from step to step.
using SymmetricGemmTest = DeviceTest;
TEST_F(SymmetricGemmTest, IsSymmetricToTheBit) {
  if (!gemm_available(0)) GTEST_SKIP() << "not sm_90, or not compiled for sm_90a";
  for (const int64_t n : {8, 72, 96, 200, 264, 392, 4104}) {
    std::mt19937 random(9);
    const Operand a(Half::kF16, n, n, 1, random);
    const Operand b(Half::kF16, n, n, 1, random);
    const DeviceVector<uint16_t> a_device(a.bits);
    const DeviceVector<uint16_t> b_device(b.bits);
    const DeviceVector<uint16_t> d_device(a.bits.size());
    const DeviceVector<Scalars> scalars(std::vector<Scalars>{{1, 0}});
    LaunchQueue queue(nullptr);
    Gemm p;
    p.type = Half::kF16;
    p.a = p.b = p.d = a.shape;
    p.a.data = a_device.data();
    p.b.data = b_device.data();
    p.d.data = d_device.data();
    p.b_transposed = true;
    p.symmetric = true;
    p.batch = 1;
    p.scalars = scalars.data();
    check(cudaDeviceSynchronize(), "operands");
    multiply(p, queue);
    check(cudaDeviceSynchronize(), "gemm");
    const std::vector<uint16_t> d = d_device.values();
    int64_t differing = 0;
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < i; ++j) {
        differing += d[static_cast<size_t>(i * p.d.pitch + j)] != d[static_cast<size_t>(j * p.d.pitch + i)];
      }
    }
    EXPECT_EQ(differing, 0) << n;
  }
}

TEST_P(GemmTest, IsRightForAnyShapeAndTheSameInAnyBatch) {
  if (!gemm_available(0)) GTEST_SKIP() << "not sm_90, or not compiled for sm_90a";
  const Case& c = GetParam();
  for (const Half type : {Half::kBf16, Half::kF16}) {
    std::mt19937 random(7);
    const Operand a(type, c.a_transposed ? c.inner : c.rows, c.a_transposed ? c.rows : c.inner, c.batch, random);
    const Operand other(type, c.b_transposed ? c.columns : c.inner, c.b_transposed ? c.inner : c.columns, c.batch,
                        random);
    const Operand& b = c.symmetric ? a : other;
    Operand addend(type, c.rows, c.columns, c.batch, random);
    if (c.symmetric) {
      for (int64_t m = 0; m < c.batch; ++m) {
        for (int64_t i = 0; i < c.rows; ++i) {
          for (int64_t j = 0; j < i; ++j) {
            const int64_t base = m * addend.shape.stride;
            addend.bits[static_cast<size_t>(base + j * addend.pitch + i)] =
                addend.bits[static_cast<size_t>(base + i * addend.pitch + j)];
          }
        }
      }
    }
    const DeviceVector<uint16_t> a_device(a.bits);
    const DeviceVector<uint16_t> other_device(other.bits);
    const DeviceVector<uint16_t> c_device(addend.bits);
    const DeviceVector<uint16_t> d_device(addend.bits.size());
    const DeviceVector<uint16_t> alone_device(addend.bits.size());
    // A stride of 2: every second entry is used.
    std::vector<Scalars> scalars_of(static_cast<size_t>(2 * c.batch));
    for (size_t m = 0; m < static_cast<size_t>(c.batch); ++m) {
      scalars_of[2 * m] = {0.75F + static_cast<float>(m), -1.5F - static_cast<float>(m)};
    }
    const DeviceVector<Scalars> scalars(scalars_of);
    LaunchQueue queue(nullptr);

    Gemm p;
    p.type = type;
    p.a = a.shape;
    p.a.data = a_device.data();
    p.b = b.shape;
    p.b.data = c.symmetric ? a_device.data() : other_device.data();
    if (c.beta) {
      p.c = addend.shape;
      p.c.data = c_device.data();
    }
    p.d = addend.shape;
    p.d.data = d_device.data();
    p.a_transposed = c.a_transposed;
    p.b_transposed = c.b_transposed;
    p.symmetric = c.symmetric;
    p.batch = c.batch;
    p.scalars = scalars.data();
    p.scalars_stride = 2;
    const int64_t tiles = (c.columns + 127) / 128;
    const DeviceVector<float> squares_device(static_cast<size_t>(c.batch * tiles * c.rows));
    const DeviceVector<uint16_t> with_identity(addend.bits.size());
    const DeviceVector<Scalars> identity(std::vector<Scalars>{{0, 3.25F}});
    if (!c.symmetric) p.row_squares = squares_device.data();
    if (c.symmetric && c.beta) {
      p.d_and_identity = p.d;
      p.d_and_identity.data = with_identity.data();
      p.identity = identity.data();
    }
    check(cudaDeviceSynchronize(), "operands");  // the queue's streams do not wait for the default stream
    multiply(p, queue);
    for (int64_t m = 0; m < c.batch; ++m) {
      Gemm alone = p;
      alone.row_squares = nullptr;  // the second outputs do not change D either
      alone.d_and_identity = {};
      alone.batch = 1;
      for (Matrices* x : {&alone.a, &alone.b, &alone.c}) {
        if (x->data != nullptr) x->data = static_cast<uint16_t*>(x->data) + m * x->stride;
      }
      alone.d.data = alone_device.data() + m * alone.d.stride;
      alone.scalars = scalars.data() + 2 * m;
      alone.scalars_stride = 0;
      multiply(alone, queue);
    }
    check(cudaDeviceSynchronize(), "gemm");
    const std::vector<uint16_t> d = d_device.values();
    EXPECT_EQ(d, alone_device.values());
    if (c.symmetric) {  // with B elsewhere, tiles on the diagonal load A as well
      const DeviceVector<uint16_t> copy(a.bits);
      Gemm apart = p;
      apart.b.data = copy.data();
      check(cudaDeviceSynchronize(), "operands");
      multiply(apart, queue);
      check(cudaDeviceSynchronize(), "gemm");
      EXPECT_EQ(d_device.values(), d);
    }
    const auto index = [&](int64_t m, int64_t i, int64_t j) {
      return static_cast<size_t>(m * p.d.stride + i * p.d.pitch + j);
    };
    for (int64_t m = 0; p.row_squares != nullptr && m < c.batch; ++m) {
      const std::vector<float> squares = squares_device.values();
      for (int64_t tile = 0; tile < tiles; ++tile) {
        for (int64_t i = 0; i < c.rows; ++i) {
          double sum = 0;
          for (int64_t j = tile * 128; j < std::min(c.columns, tile * 128 + 128); ++j) {
            sum += std::pow(static_cast<double>(to_float(type, d[index(m, i, j)])), 2);
          }
          ASSERT_NEAR(squares[static_cast<size_t>((m * tiles + tile) * c.rows + i)], sum, 1e-5 * sum + 1e-12);
        }
      }
    }
    for (int64_t m = 0; p.d_and_identity.data != nullptr && m < c.batch; ++m) {
      const std::vector<uint16_t> more = with_identity.values();
      for (int64_t i = 0; i < c.rows; ++i) {
        for (int64_t j = 0; j < c.columns; ++j) {
          const uint16_t plain = d[index(m, i, j)];
          ASSERT_EQ(more[index(m, i, j)], i == j ? to_half(type, to_float(type, plain) + 3.25F) : plain)
              << m << ": " << i << ", " << j;
        }
      }
    }
    std::vector<std::vector<uint16_t>> results{d};
    if (Cublas::available()) {
      Cublas cublas;
      Gemm plain = p;
      plain.row_squares = nullptr;
      plain.d_and_identity = {};
      multiply(plain, queue, &cublas);
      check(cudaDeviceSynchronize(), "GEMM by cuBLAS");
      results.push_back(d_device.values());
    }

    const double epsilon = type == Half::kBf16 ? 0x1p-8 : 0x1p-10;
    for (const int64_t m : {int64_t{0}, c.batch - 1}) {
      for (int64_t i = 0; i<c.rows; i += c.rows> 1000 ? 37 : 1) {
        for (int64_t j = 0; j < c.columns; ++j) {
          double sum = 0;
          for (int64_t k = 0; k < c.inner; ++k) {
            sum += (c.a_transposed ? a.at(type, m, k, i) : a.at(type, m, i, k)) *
                   (c.b_transposed ? b.at(type, m, j, k) : b.at(type, m, k, j));
          }
          const Scalars& own = scalars_of[static_cast<size_t>(2 * m)];
          const double expected = static_cast<double>(own.alpha) * sum +
                                  (c.beta ? static_cast<double>(own.beta) * addend.at(type, m, i, j) : 0);
          for (const std::vector<uint16_t>& result : results) {
            const float got = to_float(type, result[static_cast<size_t>(m * p.d.stride + i * p.d.pitch + j)]);
            ASSERT_NEAR(got, expected, epsilon * std::abs(expected) + 1e-4)
                << (&result == results.data() ? "" : "cuBLAS ") << m << ": " << i << ", " << j;
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, GemmTest,
    testing::Values(Case{128, 128, 64, 1, false, true, false, false}, Case{200, 328, 200, 3, false, false, false, true},
                    Case{1, 12, 1, 2, false, false, false, true}, Case{130, 70, 258, 5, false, true, false, true},
                    Case{300, 257, 65, 2, false, false, false, false}, Case{6, 6, 12, 3, false, true, true, false},
                    Case{200, 200, 328, 3, false, true, true, false}, Case{328, 328, 500, 2, true, false, true, false},
                    Case{300, 300, 300, 3, false, true, true, true}, Case{129, 129, 129, 2, false, true, true, true},
                    Case{7, 7, 900, 40, true, false, true, false},
                    // Several tiles per block, each of one stage or two.
                    Case{64, 136, 64, 200, false, false, false, true}, Case{60, 60, 64, 400, false, true, true, true},
                    Case{64, 136, 128, 200, false, false, false, true},
                    // Large enough for the cooperative schedule.
                    Case{2100, 2072, 200, 2, false, true, false, true},
                    Case{2100, 2072, 72, 1, false, false, false, false},
                    Case{4100, 4100, 72, 1, false, true, true, true},
                    Case{4100, 4100, 72, 1, true, false, true, false}));

TEST_F(DeviceTest, GemmNamesOperandsThatDoNotFit) {
  if (!gemm_available(0)) GTEST_SKIP() << "not sm_90, or not compiled for sm_90a";
  const DeviceVector<uint16_t> memory(1024);
  Gemm p;
  p.batch = 1;
  p.a = {memory.data(), 8, 16, 16, 128};
  p.b = {memory.data(), 16, 8, 8, 128};
  p.d = {memory.data(), 8, 8, 8, 64};
  p.a.pitch = 17;
  try {
    LaunchQueue queue(nullptr);
    multiply(p, queue);
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("gemm: A is 8x16, pitch 17"));
  }
}

}  // namespace
}  // namespace muster::kernels::cuda
