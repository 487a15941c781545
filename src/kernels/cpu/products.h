// Matrix products, whole or cut into strips for several threads: one or two BLAS calls a strip, single-threaded. How a
// product is cut never changes its bits. All matrices are row-major.
#pragma once

#include <cstdint>

namespace muster::kernels::cpu {

enum class Transpose : uint8_t { kNo, kYes };

// An operand: op(A), read with a stride of `stride` elements from row to row of A.
struct Operand {
  const float* data = nullptr;
  int64_t stride = 0;
  Transpose transpose = Transpose::kNo;
};

// C = alpha A B + beta D + diagonal I, n x n, for operands whose product is symmetric; D and C are contiguous. Only the
// lower triangle is computed, and mirrored: C is symmetric to the bit.
struct SymmetricProduct {
  int64_t n = 0;
  int64_t inner = 0;
  Operand a{};  // n x inner
  Operand b{};  // inner x n
  float alpha = 1;
  float beta = 0;
  const float* d = nullptr;  // read where beta is not 0
  float diagonal = 0;
  float* c = nullptr;
};

// Tasks of about equal size: `strips` of them, or fewer where those would be too narrow.
int64_t tasks(const SymmetricProduct& product, int strips);
void run(const SymmetricProduct& product, int strips, int64_t task);
double flops(const SymmetricProduct& product);  // of the triangle

// C = A B, rows x columns, contiguous.
struct Product {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t inner = 0;
  const float* a = nullptr;
  const float* b = nullptr;
  float* c = nullptr;
};

int64_t tasks(const Product& product, int strips);
void run(const Product& product, int strips, int64_t task);
double flops(const Product& product);

}  // namespace muster::kernels::cpu
