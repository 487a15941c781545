#include "train/matrix.h"

#include <blis.h>

namespace muster::train {
namespace {

template <typename T, typename Gemm>
void call(Gemm gemm, Matrix<const T> a, Matrix<const T> b, Matrix<T> c, const ProductOptions& options) {
  rntm_t runtime;
  bli_rntm_init(&runtime);
  bli_rntm_set_num_threads(1, &runtime);
  T alpha = static_cast<T>(options.alpha);
  T beta = options.into == Into::kAdd ? 1 : 0;
  gemm(BLIS_NO_TRANSPOSE, BLIS_NO_TRANSPOSE, c.rows, c.columns, a.columns, &alpha, const_cast<T*>(a.data), a.row_stride,
       a.column_stride, const_cast<T*>(b.data), b.row_stride, b.column_stride, &beta, c.data, c.row_stride,
       c.column_stride, nullptr, &runtime);
}

}  // namespace

void multiply(Matrix<const float> a, Matrix<const float> b, Matrix<float> c, ProductOptions options) {
  call(bli_sgemm_ex, a, b, c, options);
}

void multiply(Matrix<const double> a, Matrix<const double> b, Matrix<double> c, ProductOptions options) {
  call(bli_dgemm_ex, a, b, c, options);
}

}  // namespace muster::train
