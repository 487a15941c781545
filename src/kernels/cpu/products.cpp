#include "kernels/cpu/products.h"

#include <algorithm>
#include <blis.h>
#include <cmath>
#include <vector>

namespace muster::kernels::cpu {
namespace {

// What one call computes: all of C, or the lower triangle of a square C.
enum class Part : uint8_t { kAll, kLower };

struct Block {
  int64_t rows;
  int64_t columns;
  int64_t inner;
  Part part;
  Into into = Into::kReplace;
};

// BLIS on this thread.
rntm_t one_thread() {
  rntm_t runtime;
  bli_rntm_init(&runtime);
  bli_rntm_set_num_threads(1, &runtime);
  // On our strips, BLIS's path for small operands, which does not pack them, is up to three times slower.
  bli_rntm_disable_l3_sup(&runtime);
  return runtime;
}

trans_t name_of(Transpose transpose) { return transpose == Transpose::kYes ? BLIS_TRANSPOSE : BLIS_NO_TRANSPOSE; }

// C = op(A) op(B), or C += op(A) op(B), on this thread. BLIS sums each element over `inner` in blocks and an order that
// depend on `inner` alone, and edges go through the same kernel as the middle: which part of a product a call computes
// changes no bit. Alpha and beta other than 1 and 0 would change bits, because BLIS rounds them separately at edges.
void gemm(const Block& block, Operand a, Operand b, float* c, int64_t c_stride) {
  rntm_t runtime = one_thread();
  const trans_t a_name = name_of(a.transpose);
  const trans_t b_name = name_of(b.transpose);
  float* a_data = const_cast<float*>(a.data);
  float* b_data = const_cast<float*>(b.data);
  float one = 1;
  float beta = block.into == Into::kAdd ? 1 : 0;
  if (block.part == Part::kLower) {
    bli_sgemmt_ex(BLIS_LOWER, a_name, b_name, block.rows, block.inner, &one, a_data, a.stride, 1, b_data, b.stride, 1,
                  &beta, c, c_stride, 1, nullptr, &runtime);
  } else {
    bli_sgemm_ex(a_name, b_name, block.rows, block.columns, block.inner, &one, a_data, a.stride, 1, b_data, b.stride, 1,
                 &beta, c, c_stride, 1, nullptr, &runtime);
  }
}

Operand from_row(Operand o, int64_t row) {
  o.data += o.transpose == Transpose::kNo ? row * o.stride : row;
  return o;
}
Operand from_column(Operand o, int64_t column) {
  o.data += o.transpose == Transpose::kNo ? column : column * o.stride;
  return o;
}

// Strips end at multiples of the widths of BLIS microkernels (6, 8, 12, 16). A narrower strip would mostly pack.
constexpr int64_t kStripUnit = 48;
constexpr int64_t kLeastStrip = 96;
// A DoubleGram: columns per task, and inner elements per block. Other numbers would change its bits.
constexpr int64_t kGramColumns = 32;
constexpr int64_t kGramInner = 256;

int64_t strips_of(int64_t size, int strips) { return std::clamp<int64_t>(size / kLeastStrip, 1, strips); }

int64_t round_to_unit(double size) { return std::llround(size / kStripUnit) * kStripUnit; }

// The first row of strip i. Strips of a lower triangle have equal area.
int64_t triangle_strip(int64_t n, int64_t count, int64_t i) {
  if (i == count) return n;
  const double part = static_cast<double>(i) / static_cast<double>(count);
  return std::min(n, round_to_unit(static_cast<double>(n) * std::sqrt(part)));
}

int64_t even_strip(int64_t size, int64_t count, int64_t i) {
  if (i == count) return size;
  return std::min(size, round_to_unit(static_cast<double>(size * i) / static_cast<double>(count)));
}

// In rows [begin, end): C <- alpha C + beta D + diagonal I below the diagonal, and its mirror image above.
void combine_and_mirror(const SymmetricProduct& p, int64_t begin, int64_t end) {
  // By squares, so that both reads and writes stay in cache.
  constexpr int64_t kSquare = 16;
  for (int64_t i0 = begin; i0 < end; i0 += kSquare) {
    const int64_t i1 = std::min(i0 + kSquare, end);
    for (int64_t i = i0; i < i1; ++i) {
      float* c = p.c + i * p.n;
      if (p.beta != 0) {
        const float* d = p.d + i * p.n;
        for (int64_t j = 0; j <= i; ++j) c[j] = p.alpha * c[j] + p.beta * d[j];
      } else if (p.alpha != 1) {
        for (int64_t j = 0; j <= i; ++j) c[j] *= p.alpha;
      }
      c[i] += p.diagonal;
    }
    for (int64_t j0 = 0; j0 < i1; j0 += kSquare) {
      const int64_t j1 = std::min(j0 + kSquare, i1);
      for (int64_t j = j0; j < j1; ++j) {
        for (int64_t i = std::max(i0, j + 1); i < i1; ++i) p.c[j * p.n + i] = p.c[i * p.n + j];
      }
    }
  }
}

}  // namespace

int64_t tasks(const SymmetricProduct& product, int strips) { return strips_of(product.n, strips); }

void run(const SymmetricProduct& p, int strips, int64_t task) {
  const int64_t count = tasks(p, strips);
  const int64_t begin = triangle_strip(p.n, count, task);
  const int64_t end = triangle_strip(p.n, count, task + 1);
  if (begin == end) return;
  const Operand a = from_row(p.a, begin);
  float* c = p.c + begin * p.n;
  if (begin > 0) gemm({end - begin, begin, p.inner, Part::kAll}, a, p.b, c, p.n);
  gemm({end - begin, end - begin, p.inner, Part::kLower}, a, from_column(p.b, begin), c + begin, p.n);
  combine_and_mirror(p, begin, end);
}

double flops(const SymmetricProduct& p) {
  return static_cast<double>(p.n) * static_cast<double>(p.n + 1) * static_cast<double>(p.inner);
}

int64_t tasks(const Product& p, int strips) { return strips_of(std::max(p.rows, p.columns), strips); }

void run(const Product& p, int strips, int64_t task) {
  // Cut the longer side: then the operand that every strip packs is the smaller one.
  const bool tall = p.rows >= p.columns;
  const int64_t longer = tall ? p.rows : p.columns;
  const int64_t count = tasks(p, strips);
  const int64_t begin = even_strip(longer, count, task);
  const int64_t size = even_strip(longer, count, task + 1) - begin;
  if (size == 0) return;
  if (tall) {
    const Block block{size, p.columns, p.inner, Part::kAll, p.into};
    gemm(block, from_row(p.a, begin), p.b, p.c + begin * p.columns, p.columns);
  } else {
    const Block block{p.rows, size, p.inner, Part::kAll, p.into};
    gemm(block, p.a, from_column(p.b, begin), p.c + begin, p.columns);
  }
}

double flops(const Product& p) {
  return 2.0 * static_cast<double>(p.rows) * static_cast<double>(p.columns) * static_cast<double>(p.inner);
}

int64_t tasks(const DoubleGram& gram) { return (gram.n + kGramColumns - 1) / kGramColumns; }

// Columns [begin, end) of C down to row `end`: inner elements of A in blocks, which a double copy holds.
void run(const DoubleGram& gram, int64_t task) {
  const int64_t begin = task * kGramColumns;
  const int64_t end = std::min(gram.n, begin + kGramColumns);
  const bool transposed = gram.a.transpose == Transpose::kYes;
  thread_local std::vector<double> copy;
  copy.resize(static_cast<size_t>(gram.n * kGramInner));
  for (int64_t k0 = 0; k0 < gram.inner; k0 += kGramInner) {
    const int64_t inner = std::min(kGramInner, gram.inner - k0);
    // Rows of the copy are those of A in memory, and row_stride leads from one row of op(A) to the next.
    const int64_t rows = transposed ? inner : end;
    const int64_t columns = transposed ? end : inner;
    const float* const from = from_column(gram.a, k0).data;
    for (int64_t i = 0; i < rows; ++i) {
      std::copy_n(from + i * gram.a.stride, columns, copy.data() + i * columns);
    }
    const int64_t row_stride = transposed ? 1 : columns;
    const int64_t inner_stride = transposed ? columns : 1;
    double one = 1;
    double beta = k0 == 0 ? 0 : 1;
    rntm_t runtime = one_thread();
    bli_dgemm_ex(BLIS_NO_TRANSPOSE, BLIS_NO_TRANSPOSE, end, end - begin, inner, &one, copy.data(), row_stride,
                 inner_stride, copy.data() + begin * row_stride, inner_stride, row_stride, &beta, gram.c + begin,
                 gram.n, 1, nullptr, &runtime);
  }
}

}  // namespace muster::kernels::cpu
