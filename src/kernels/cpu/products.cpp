#include "kernels/cpu/products.h"

#include <algorithm>
#include <blis.h>

namespace muster::kernels::cpu {
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// What one call computes: all of C, or its lower triangle (rows and columns alike).
enum class Part : uint8_t { kAll, kLower };

struct Block {
  int64_t rows;
  int64_t columns;
  int64_t inner;
  Part part;
};

// C = alpha op(A) op(B) + beta C, on this thread.
void gemm(const Block& block, float alpha, Operand a, Operand b, float beta, float* c, int64_t c_stride) {
  rntm_t runtime;
  bli_rntm_init(&runtime);
  bli_rntm_set_num_threads(1, &runtime);
  // BLIS has a path for small operands that does not pack them. On our tiles it is up to three times slower.
  bli_rntm_disable_l3_sup(&runtime);
  const auto name = [](Operand o) { return o.transpose == Transpose::kYes ? BLIS_TRANSPOSE : BLIS_NO_TRANSPOSE; };
  float* a_data = const_cast<float*>(a.data);
  float* b_data = const_cast<float*>(b.data);
  if (block.part == Part::kLower) {
    bli_sgemmt_ex(BLIS_LOWER, name(a), name(b), block.rows, block.inner, &alpha, a_data, a.stride, 1, b_data, b.stride,
                  1, &beta, c, c_stride, 1, nullptr, &runtime);
  } else {
    bli_sgemm_ex(name(a), name(b), block.rows, block.columns, block.inner, &alpha, a_data, a.stride, 1, b_data,
                 b.stride, 1, &beta, c, c_stride, 1, nullptr, &runtime);
  }
}

// Large enough to run at the full rate, small enough for several threads to share a matrix: docs/cpu.md. Part of the
// result.
constexpr int64_t kPanelRows = 256;
constexpr int64_t kTileRows = 256;
constexpr int64_t kTileColumns = 768;

void mirror(const SymmetricProduct& p, int64_t begin, int64_t end) {
  // In squares, so that the reads and the writes both stay in cache.
  constexpr int64_t kSquare = 16;
  for (int64_t j0 = 0; j0 < end; j0 += kSquare) {
    const int64_t j1 = std::min(j0 + kSquare, end);
    for (int64_t i0 = begin; i0 < end; i0 += kSquare) {
      const int64_t i1 = std::min(i0 + kSquare, end);
      for (int64_t j = j0; j < j1; ++j) {
        for (int64_t i = std::max(i0, j + 1); i < i1; ++i) p.c[j * p.n + i] = p.c[i * p.n + j];
      }
    }
  }
}

}  // namespace

int64_t tasks(const SymmetricProduct& product) { return ceil_div(product.n, kPanelRows); }

void run(const SymmetricProduct& p, int64_t task) {
  // The longest first: what is left for the end is small.
  const int64_t begin = (tasks(p) - 1 - task) * kPanelRows;
  const int64_t end = std::min(p.n, begin + kPanelRows);
  float* c = p.c + begin * p.n;
  if (p.beta != 0) {
    const float* d = p.d + begin * p.n;
    for (int64_t i = 0; i < end - begin; ++i) std::copy_n(d + i * p.n, end, c + i * p.n);
  }
  Operand a = p.a;
  a.data += p.a.transpose == Transpose::kNo ? begin * p.a.stride : begin;
  if (begin > 0) gemm({end - begin, begin, p.inner, Part::kAll}, p.alpha, a, p.b, p.beta, c, p.n);
  Operand b = p.b;
  b.data += p.b.transpose == Transpose::kNo ? begin : begin * p.b.stride;
  gemm({end - begin, end - begin, p.inner, Part::kLower}, p.alpha, a, b, p.beta, c + begin, p.n);
  if (p.diagonal != 0) {
    for (int64_t i = begin; i < end; ++i) p.c[i * p.n + i] += p.diagonal;
  }
  mirror(p, begin, end);
}

double flops(const SymmetricProduct& p) {
  return static_cast<double>(p.n) * static_cast<double>(p.n + 1) * static_cast<double>(p.inner);
}

int64_t tasks(const Product& p) { return ceil_div(p.rows, kTileRows) * ceil_div(p.columns, kTileColumns); }

void run(const Product& p, int64_t task) {
  const int64_t across = ceil_div(p.columns, kTileColumns);
  const int64_t row = task / across * kTileRows;
  const int64_t column = task % across * kTileColumns;
  const Block block{std::min(kTileRows, p.rows - row), std::min(kTileColumns, p.columns - column), p.inner, Part::kAll};
  gemm(block, 1, {p.a + row * p.inner, p.inner}, {p.b + column, p.columns}, 0, p.c + row * p.columns + column,
       p.columns);
}

double flops(const Product& p) {
  return 2.0 * static_cast<double>(p.rows) * static_cast<double>(p.columns) * static_cast<double>(p.inner);
}

}  // namespace muster::kernels::cpu
