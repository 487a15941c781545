// Matrix products, whole or cut into strips for several threads: single-threaded BLAS calls, one or two per strip. How
// a product is cut never changes its bits. All matrices are row-major.
#pragma once

#include <cstdint>

namespace muster::kernels::cpu {

enum class Transpose : uint8_t { kNo, kYes };

// op(A), where rows of A are `stride` elements apart.
struct Operand {
  const float* data = nullptr;
  int64_t stride = 0;
  Transpose transpose = Transpose::kNo;
};

// C = alpha A B + beta D + diagonal I, n x n, for operands whose product is symmetric; D and C are contiguous. Only the
// lower triangle is computed; the upper is its mirror image, so C is symmetric to the bit.
struct SymmetricProduct {
  int64_t n = 0;
  int64_t inner = 0;
  Operand a{};  // n x inner
  Operand b{};  // inner x n
  float alpha = 1;
  float beta = 0;
  const float* d = nullptr;  // read unless beta is 0
  float diagonal = 0;
  float* c = nullptr;
};

// The number of tasks, of about equal size: `strips`, or fewer if those would be too narrow.
int64_t tasks(const SymmetricProduct& product, int strips);
void run(const SymmetricProduct& product, int strips, int64_t task);
double flops(const SymmetricProduct& product);  // of the lower triangle

enum class Into : uint8_t { kReplace, kAdd };  // C = A B or C += A B

// C = A B or C += A B, rows x columns, contiguous.
struct Product {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t inner = 0;
  Operand a{};  // rows x inner
  Operand b{};  // inner x columns
  float* c = nullptr;
  Into into = Into::kReplace;
};

int64_t tasks(const Product& product, int strips);
void run(const Product& product, int strips, int64_t task);
double flops(const Product& product);

// The upper triangle of C = A A^T in double, n x n, contiguous; elements below it may change too. A is n x inner.
struct DoubleGram {
  int64_t n = 0;
  int64_t inner = 0;
  Operand a{};
  double* c = nullptr;
};

// The number of tasks depends on n alone.
int64_t tasks(const DoubleGram& gram);
void run(const DoubleGram& gram, int64_t task);

}  // namespace muster::kernels::cpu
