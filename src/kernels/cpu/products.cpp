#include "kernels/cpu/products.h"

#include <algorithm>

extern "C" {
void sgemm_(const char* transpose_a, const char* transpose_b, const int* m, const int* n, const int* k,
            const float* alpha, const float* a, const int* lda, const float* b, const int* ldb, const float* beta,
            float* c, const int* ldc);
int openblas_get_parallel(void);
}

namespace muster::kernels::cpu {
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

struct Block {
  int64_t rows;
  int64_t columns;
  int64_t inner;
};

// Row-major C = alpha op(A) op(B) + beta C. BLAS reads columns first and so sees the transposes of all three.
void gemm(Block block, float alpha, Operand a, Operand b, float beta, float* c, int64_t c_stride) {
  const char* names[] = {"N", "T"};
  const int m = static_cast<int>(block.columns);
  const int n = static_cast<int>(block.rows);
  const int k = static_cast<int>(block.inner);
  const int lda = static_cast<int>(b.stride);
  const int ldb = static_cast<int>(a.stride);
  const int ldc = static_cast<int>(c_stride);
  sgemm_(names[static_cast<int>(b.transpose)], names[static_cast<int>(a.transpose)], &m, &n, &k, &alpha, b.data, &lda,
         a.data, &ldb, &beta, c, &ldc);
}

// Rows of a panel. Small ones waste less past the diagonal, large ones pack less: measured, docs/cpu.md.
int64_t panel_rows(int64_t n) { return n <= 384 ? 64 : n <= 1024 ? 96 : n < 2048 ? 128 : 256; }

constexpr int64_t kTileRows = 768;
constexpr int64_t kTileColumns = 256;

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

bool blas_is_serial() { return openblas_get_parallel() == 0; }

int64_t tasks(const SymmetricProduct& product) { return ceil_div(product.n, panel_rows(product.n)); }

void run(const SymmetricProduct& p, int64_t task) {
  const int64_t height = panel_rows(p.n);
  // The longest first: what is left for the end is small.
  const int64_t begin = (tasks(p) - 1 - task) * height;
  const int64_t end = std::min(p.n, begin + height);
  float* c = p.c + begin * p.n;
  if (p.beta != 0) {
    const float* d = p.d + begin * p.n;
    for (int64_t i = 0; i < end - begin; ++i) std::copy_n(d + i * p.n, end, c + i * p.n);
  }
  Operand a = p.a;
  a.data += p.a.transpose == Transpose::kNo ? begin * p.a.stride : begin;
  gemm({end - begin, end, p.inner}, p.alpha, a, p.b, p.beta, c, p.n);
  if (p.diagonal != 0) {
    for (int64_t i = begin; i < end; ++i) p.c[i * p.n + i] += p.diagonal;
  }
  mirror(p, begin, end);
}

double flops(const SymmetricProduct& p) {
  const int64_t height = panel_rows(p.n);
  double sum = 0;
  for (int64_t begin = 0; begin < p.n; begin += height) {
    const int64_t end = std::min(p.n, begin + height);
    sum += 2.0 * static_cast<double>(end - begin) * static_cast<double>(end) * static_cast<double>(p.inner);
  }
  return sum;
}

int64_t tasks(const Product& p) { return ceil_div(p.rows, kTileRows) * ceil_div(p.columns, kTileColumns); }

void run(const Product& p, int64_t task) {
  const int64_t across = ceil_div(p.columns, kTileColumns);
  const int64_t row = task / across * kTileRows;
  const int64_t column = task % across * kTileColumns;
  const Block block{std::min(kTileRows, p.rows - row), std::min(kTileColumns, p.columns - column), p.inner};
  gemm(block, 1, {p.a + row * p.inner, p.inner}, {p.b + column, p.columns}, 0, p.c + row * p.columns + column,
       p.columns);
}

double flops(const Product& p) {
  return 2.0 * static_cast<double>(p.rows) * static_cast<double>(p.columns) * static_cast<double>(p.inner);
}

}  // namespace muster::kernels::cpu
