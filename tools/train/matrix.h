// Strided matrices, and their products on one thread.
#pragma once

#include <cstdint>

namespace muster::train {

template <typename T>
struct Matrix {
  T* data = nullptr;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t row_stride = 0;
  int64_t column_stride = 1;

  // Contiguous.
  Matrix(T* first, int64_t m, int64_t n) : Matrix(first, m, n, n, 1) {}
  Matrix(T* first, int64_t m, int64_t n, int64_t by_row, int64_t by_column)
      : data(first), rows(m), columns(n), row_stride(by_row), column_stride(by_column) {}
  operator Matrix<const T>() const { return {data, rows, columns, row_stride, column_stride}; }

  T& at(int64_t i, int64_t j) const { return data[i * row_stride + j * column_stride]; }
  Matrix transposed() const { return {data, columns, rows, column_stride, row_stride}; }
  Matrix block(int64_t row, int64_t column, int64_t m, int64_t n) const {
    return {data + row * row_stride + column * column_stride, m, n, row_stride, column_stride};
  }
};

enum class Into : uint8_t { kSet, kAdd };

// C = alpha A B, or C += alpha A B. Always the same bits: one thread, whatever else the process does.
struct ProductOptions {
  double alpha = 1;
  Into into = Into::kSet;
};
void multiply(Matrix<const float> a, Matrix<const float> b, Matrix<float> c, ProductOptions options = {});
void multiply(Matrix<const double> a, Matrix<const double> b, Matrix<double> c, ProductOptions options = {});

}  // namespace muster::train
