#include "kernels/cuda/gemm_sm90/gemm.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <memory>
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
                    Case{4100, 4100, 72, 1, false, true, true, true}, Case{4100, 4100, 72, 1, true, false, true, false},
                    // Sketches: few rows, and a small inner dimension with C and the cooperative schedule.
                    Case{32, 11008, 40, 2, false, true, false, false}, Case{96, 2056, 1, 2, false, false, false, false},
                    Case{2056, 2304, 128, 3, false, false, false, true},
                    Case{2056, 2304, 64, 2, false, true, false, true}));

// What a GEMM writes, padding included.
struct Outputs {
  std::vector<uint16_t> d;
  std::vector<uint16_t> remainder;

  bool operator==(const Outputs&) const = default;
};

enum class Writes : uint8_t { kD, kDAndRemainder };

// Runs p, whose D has a shape and no data.
Outputs outputs_of(Gemm p, Writes writes, Cublas* cublas = nullptr) {
  const DeviceVector<uint16_t> d(static_cast<size_t>(p.batch * p.d.stride));
  const DeviceVector<uint16_t> remainder(static_cast<size_t>(p.batch * p.d.stride));
  p.d.data = d.data();
  if (writes == Writes::kDAndRemainder) {
    p.d_remainder = p.d;
    p.d_remainder.data = remainder.data();
  }
  LaunchQueue queue(nullptr);
  check(cudaDeviceSynchronize(), "operands");
  multiply(p, queue, cublas);
  check(cudaDeviceSynchronize(), "gemm");
  return {d.values(), remainder.values()};
}

Matrices at(const Matrices& m, const DeviceVector<uint16_t>& data) {
  return {data.data(), m.rows, m.columns, m.pitch, m.stride};
}
Matrices one_of(const Matrices& m, int64_t matrix) {
  return {static_cast<uint16_t*>(m.data) + matrix * m.stride, m.rows, m.columns, m.pitch, m.stride};
}

// Our kernel where it runs (null), and cuBLAS or what replaces it.
std::vector<std::unique_ptr<Cublas>> backends() {
  std::vector<std::unique_ptr<Cublas>> all;
  if (gemm_available(0)) all.push_back(nullptr);
  if (Cublas::available()) all.push_back(std::make_unique<Cublas>());
  return all;
}

struct SketchCase {
  int64_t rows;
  int64_t columns;
  int64_t inner;
  bool b_transposed;
};

class RemainderGemmTest : public DeviceTest, public testing::WithParamInterface<SketchCase> {};

TEST_P(RemainderGemmTest, AddsToTheProductWithTwiceTheMantissaTheSameInAnyBatch) {
  const SketchCase& c = GetParam();
  constexpr int64_t kBatch = 3;
  for (const Half type : {Half::kBf16, Half::kF16}) {
    std::mt19937 random(5);
    const Operand a(type, c.rows, c.inner, kBatch, random);
    const Operand b(type, c.b_transposed ? c.columns : c.inner, c.b_transposed ? c.inner : c.columns, kBatch, random);
    const DeviceVector<uint16_t> a_device(a.bits);
    const DeviceVector<uint16_t> b_device(b.bits);
    // So large that remainders are normal numbers in fp16.
    const std::vector<Scalars> scalars_of{{192, 9}, {-320, 9}, {448, 9}};
    const DeviceVector<Scalars> scalars(scalars_of);
    Gemm p;
    p.type = type;
    p.a = at(a.shape, a_device);
    p.b = at(b.shape, b_device);
    p.b_transposed = c.b_transposed;
    const int64_t pitch = (c.columns + 7) / 8 * 8 + 8;
    p.d = {nullptr, c.rows, c.columns, pitch, c.rows * pitch};
    p.batch = kBatch;
    p.scalars = scalars.data();
    p.scalars_stride = 1;
    for (const std::unique_ptr<Cublas>& cublas : backends()) {
      SCOPED_TRACE(std::string(cublas == nullptr ? "ours" : "for all GPUs") +
                   (type == Half::kF16 ? ", fp16" : ", bf16"));
      const Outputs both = outputs_of(p, Writes::kDAndRemainder, cublas.get());
      if (cublas == nullptr) {
        EXPECT_TRUE(outputs_of(p, Writes::kD).d == both.d);
      }
      Outputs alone;
      for (int64_t m = 0; m < kBatch; ++m) {
        Gemm single = p;
        single.a = one_of(p.a, m);
        single.b = one_of(p.b, m);
        single.batch = 1;
        single.scalars += m;
        const Outputs own = outputs_of(single, Writes::kDAndRemainder, cublas.get());
        alone.d.insert(alone.d.end(), own.d.begin(), own.d.end());
        alone.remainder.insert(alone.remainder.end(), own.remainder.begin(), own.remainder.end());
      }
      EXPECT_TRUE(alone == both);

      // Rounding D loses up to 2^-8 (bf16) or 2^-11 of it, and rounding the remainder as much of that. The f32 sums of
      // tensor cores are truncated, not rounded: far less than 2^-20 of the lengths of A's row and B's column.
      const double lost = type == Half::kBf16 ? 0x1p-8 : 0x1p-11;
      for (int64_t m = 0; m < kBatch; ++m) {
        const double alpha = static_cast<double>(scalars_of[static_cast<size_t>(m)].alpha);
        for (int64_t i = 0; i < c.rows; ++i) {
          for (int64_t j = m; j<c.columns; j += c.columns> 1000 ? 29 : 1) {
            double sum = 0;
            double a_squares = 0;
            double b_squares = 0;
            for (int64_t k = 0; k < c.inner; ++k) {
              const double x = a.at(type, m, i, k);
              const double y = c.b_transposed ? b.at(type, m, j, k) : b.at(type, m, k, j);
              sum += x * y;
              a_squares += x * x;
              b_squares += y * y;
            }
            const auto index = static_cast<size_t>(m * p.d.stride + i * p.d.pitch + j);
            const double d = static_cast<double>(to_float(type, both.d[index]));
            const double remainder = static_cast<double>(to_float(type, both.remainder[index]));
            const double expected = alpha * sum;
            const double tolerance = lost * lost * std::abs(expected) + 0x1p-25 +
                                     0x1p-20 * std::abs(alpha) * std::sqrt(a_squares * b_squares);
            ASSERT_NEAR(d + remainder, expected, tolerance) << m << ": " << i << ", " << j;
            ASSERT_LE(std::abs(remainder), lost * std::abs(d) + 0x1p-25) << m << ": " << i << ", " << j;
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, RemainderGemmTest,
                         testing::Values(SketchCase{32, 11008, 72, true}, SketchCase{64, 2056, 1000, false},
                                         SketchCase{96, 1100, 327, true}, SketchCase{128, 330, 1100, false},
                                         SketchCase{128, 128, 64, true}, SketchCase{64, 70, 1, true},
                                         SketchCase{32, 71, 1, false}, SketchCase{1, 9, 130, false},
                                         // More rows than a sketch has, where D alone is small enough for ping-pong.
                                         SketchCase{200, 150, 65, true}));

TEST_F(DeviceTest, GemmOfSharedOperandsEqualsThatOfCopies) {
  struct Shape {
    int64_t rows;
    int64_t columns;
    int64_t inner;
    bool b_transposed;
    Writes writes;
  };
  for (const Shape& shape :
       {Shape{64, 328, 200, true, Writes::kD}, Shape{200, 136, 72, false, Writes::kD},
        Shape{2056, 2048, 72, false, Writes::kD}, Shape{96, 330, 200, true, Writes::kDAndRemainder},
        Shape{128, 200, 330, false, Writes::kDAndRemainder}}) {
    for (const int64_t batch : {1, 3, 7}) {
      std::mt19937 random(11);
      const auto operand = [&](int64_t rows, int64_t columns, int64_t count) {
        return Operand(Half::kF16, rows, columns, count, random);
      };
      const Operand a = operand(shape.rows, shape.inner, batch);
      const Operand b = operand(shape.b_transposed ? shape.columns : shape.inner,
                                shape.b_transposed ? shape.inner : shape.columns, batch);
      const Operand c = operand(shape.rows, shape.columns, batch);
      const DeviceVector<Scalars> scalars(std::vector<Scalars>{{0.75F, -1.5F}});
      // Where an operand is shared, all matrices of `p` have its first one's values; `sharing` has others behind it.
      const auto copies_of = [](const Operand& x, bool shared) {
        std::vector<uint16_t> bits = x.bits;
        for (size_t i = 0; shared && i < bits.size(); ++i) bits[i] = bits[i % static_cast<size_t>(x.shape.stride)];
        return bits;
      };
      for (int shared = 1; shared < 8; ++shared) {
        const bool of_a = (shared & 1) != 0;
        const bool of_b = (shared & 2) != 0;
        const bool of_c = (shared & 4) != 0;
        if (shape.writes == Writes::kDAndRemainder && of_c) continue;  // there is no C
        const DeviceVector<uint16_t> a_device(copies_of(a, of_a));
        const DeviceVector<uint16_t> b_device(copies_of(b, of_b));
        const DeviceVector<uint16_t> c_device(copies_of(c, of_c));
        const DeviceVector<uint16_t> a_own(a.bits);
        const DeviceVector<uint16_t> b_own(b.bits);
        const DeviceVector<uint16_t> c_own(c.bits);
        Gemm p;
        p.type = Half::kF16;
        p.a = at(a.shape, a_device);
        p.b = at(b.shape, b_device);
        if (shape.writes == Writes::kD) p.c = at(c.shape, c_device);
        p.d = c.shape;
        p.b_transposed = shape.b_transposed;
        p.batch = batch;
        p.scalars = scalars.data();
        Gemm sharing = p;
        sharing.a.data = a_own.data();
        sharing.b.data = b_own.data();
        if (p.c.data != nullptr) sharing.c.data = c_own.data();
        if (of_a) sharing.a.stride = 0;
        if (of_b) sharing.b.stride = 0;
        if (of_c) sharing.c.stride = 0;
        for (const std::unique_ptr<Cublas>& cublas : backends()) {
          EXPECT_TRUE(outputs_of(sharing, shape.writes, cublas.get()) == outputs_of(p, shape.writes, cublas.get()))
              << shape.rows << "x" << shape.columns << ", batch " << batch << ", shared " << shared
              << (cublas == nullptr ? "" : ", not our kernel");
        }
      }
    }
  }
}

// A stage of A A^T on the diagonal has A once.
TEST_F(DeviceTest, GramMatrixOfASharedOperandEqualsThatOfCopies) {
  if (!gemm_available(0)) GTEST_SKIP() << "not sm_90, or not compiled for sm_90a";
  std::mt19937 random(12);
  const Operand x(Half::kBf16, 200, 264, 1, random);
  const DeviceVector<uint16_t> device(x.bits);
  const DeviceVector<Scalars> scalars(std::vector<Scalars>{{1, 0}});
  Gemm p;
  p.a = p.b = at(x.shape, device);
  p.b_transposed = true;
  p.symmetric = true;
  p.d = {nullptr, 200, 200, 208, 200 * 208};
  p.batch = 1;
  p.scalars = scalars.data();
  const std::vector<uint16_t> once = outputs_of(p, Writes::kD).d;
  p.a.stride = p.b.stride = 0;
  p.batch = 3;
  std::vector<uint16_t> thrice = once;
  for (int i = 0; i < 2; ++i) thrice.insert(thrice.end(), once.begin(), once.end());
  EXPECT_TRUE(outputs_of(p, Writes::kD).d == thrice);
}

// A graph that was captured for one remainder must not be replayed for another.
TEST_F(DeviceTest, GemmWritesTheRemainderOfThisStep) {
  std::mt19937 random(13);
  const Operand x(Half::kF16, 64, 64, 1, random);
  const DeviceVector<uint16_t> device(x.bits);
  const DeviceVector<uint16_t> d(x.bits.size());
  const DeviceVector<uint16_t> first(x.bits.size());
  const DeviceVector<uint16_t> second(x.bits.size());
  const DeviceVector<Scalars> scalars(std::vector<Scalars>{{1, 0}});
  check(cudaDeviceSynchronize(), "operands");
  for (const std::unique_ptr<Cublas>& cublas : backends()) {
    LaunchQueue queue(nullptr);
    const auto step = [&](const DeviceVector<uint16_t>& remainder) {
      check(cudaMemset(remainder.data(), 0xff, x.bits.size() * 2), "remainder");
      check(cudaDeviceSynchronize(), "remainder");
      Gemm p;
      p.type = Half::kF16;
      p.a = p.b = at(x.shape, device);
      p.b_transposed = true;
      p.d = at(x.shape, d);
      p.d_remainder = at(x.shape, remainder);
      p.batch = 1;
      p.scalars = scalars.data();
      do {
        queue.begin_step(true);
        multiply(p, queue, cublas.get());
      } while (!queue.end_step());
      queue.synchronize();
      return remainder.values();
    };
    const std::vector<uint16_t> expected = step(first);
    EXPECT_NE(expected, std::vector<uint16_t>(expected.size(), 0xffff));
    EXPECT_EQ(step(first), expected);
    EXPECT_EQ(step(first), expected);
    EXPECT_TRUE(queue.replayed());
    EXPECT_EQ(step(second), expected);
  }
}

// A GEMM that is right but for what a test changes.
Gemm small_gemm(const DeviceVector<uint16_t>& memory) {
  Gemm p;
  p.batch = 1;
  p.a = {memory.data(), 8, 16, 16, 128};
  p.b = {memory.data(), 16, 8, 8, 128};
  p.d = {memory.data(), 8, 8, 8, 64};
  return p;
}

std::string refusal_of(const Gemm& p, Cublas* cublas) {
  try {
    LaunchQueue queue(nullptr);
    multiply(p, queue, cublas);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

TEST_F(DeviceTest, GemmRefusesRemaindersThatNoKernelWrites) {
  const DeviceVector<uint16_t> memory(1024);
  for (const std::unique_ptr<Cublas>& cublas : backends()) {
    Gemm added = small_gemm(memory);
    added.d_remainder = added.c = added.d;
    EXPECT_EQ(refusal_of(added, cublas.get()), "gemm: no kernel for a general D = A B + C with a remainder");
    Gemm transposed = small_gemm(memory);
    transposed.d_remainder = transposed.d;
    transposed.a_transposed = true;
    transposed.a = {memory.data(), 16, 8, 8, 128};
    EXPECT_EQ(refusal_of(transposed, cublas.get()), "gemm: no kernel for a general D = A^T B with a remainder");
    Gemm symmetric = small_gemm(memory);
    symmetric.d_remainder = symmetric.d;
    symmetric.symmetric = true;
    EXPECT_EQ(refusal_of(symmetric, cublas.get()), "gemm: no kernel for a symmetric D = A B with a remainder");
    Gemm misfit = small_gemm(memory);
    misfit.d_remainder = misfit.d;
    misfit.d_remainder.rows = 9;
    EXPECT_THAT(refusal_of(misfit, cublas.get()), testing::HasSubstr("the remainder is 9x8, pitch 8, expected 8x8"));
    Gemm shared = small_gemm(memory);
    shared.batch = 2;
    shared.d.stride = 0;
    EXPECT_EQ(refusal_of(shared, cublas.get()), "gemm: an output of stride 0 for a batch of 2");
  }
}

TEST_F(DeviceTest, GemmNamesOperandsThatDoNotFit) {
  if (!gemm_available(0)) GTEST_SKIP() << "not sm_90, or not compiled for sm_90a";
  const DeviceVector<uint16_t> memory(1024);
  Gemm p = small_gemm(memory);
  p.a.pitch = 17;
  EXPECT_THAT(refusal_of(p, nullptr), testing::HasSubstr("gemm: A is 8x16, pitch 17"));
}

}  // namespace
}  // namespace muster::kernels::cuda
