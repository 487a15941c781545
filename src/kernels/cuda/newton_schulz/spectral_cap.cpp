#include "kernels/cuda/newton_schulz/spectral_cap.h"

#include <utility>

namespace muster::kernels::cuda {

namespace {

class Cap {
 public:
  Cap(int sketch, const Iterates& iterates, const CapBuffers& buffers, LaunchQueue& queue)
      : r_(sketch_columns(sketch, iterates.n())),
        n_(iterates.n()),
        m_(std::max(iterates.shape.rows, iterates.shape.columns)),
        wide_(iterates.shape.rows <= iterates.shape.columns),
        type_(half_of(iterates.form)),
        iterates_(iterates),
        buffers_(buffers),
        queue_(queue) {}

  void run(const NormSettings* settings) const {
    find_basis();
    multiply_x({.a = q_rows(), .d = e_rows(), .d_remainder = rows_at(r_)});
    replace_e(settings);
    subtract();
  }

 private:
  int64_t batch() const { return iterates_.batch; }
  const Matrices& x() const { return iterates_.x[0]; }

  // Matrices of r rows in the sketch and the basis, which have room for 2 r.
  Matrices z_rows() const { return {buffers_.sketch, r_, m_, pitch_of(m_), r_ * pitch_of(m_)}; }
  Matrices e_rows() const { return {buffers_.sketch, r_, m_, pitch_of(m_), 2 * r_ * pitch_of(m_)}; }
  Matrices q_rows() const { return {buffers_.basis, r_, n_, pitch_of(n_), 2 * r_ * pitch_of(n_)}; }
  Matrices rows_at(int64_t row) const {
    Matrices rows = e_rows();
    rows.data = static_cast<uint16_t*>(rows.data) + row * rows.pitch;
    return rows;
  }
  void* second_basis() const { return static_cast<uint16_t*>(buffers_.basis) + r_ * pitch_of(n_); }
  float* small(int64_t i) const { return buffers_.small + i * r_ * r_; }
  int64_t small_stride() const { return kSmallMatrices * r_ * r_; }
  float* sums_of_e() const { return buffers_.sums + batch() * gram_parts(n_) * r_ * r_; }

  // D = f A X, where f normalizes X; if `back`, A X^T. For tall X the other way round.
  struct Product {
    Matrices a;
    Matrices d;
    Matrices d_remainder{};
    bool back = false;
  };
  void multiply_x(const Product& product) const {
    Gemm gemm;
    gemm.type = type_;
    gemm.a = product.a;
    gemm.b = x();
    gemm.d = product.d;
    gemm.b_transposed = wide_ == product.back;
    gemm.batch = batch();
    gemm.scalars = &iterates_.scalars->product;
    gemm.scalars_stride = sizeof(FirstScalars) / sizeof(Scalars);
    gemm.d_remainder = product.d_remainder;
    multiply(gemm, queue_, iterates_.cublas);
  }

  // Finds L^-1 for V, and returns the transform that replaces V by an orthonormal basis of its columns, times `scale`.
  Transform orthonormalization(const Matrices& v, float scale) const {
    sum_gram(type_, {v}, batch(), buffers_.sums, queue_);
    const GramParts gram{buffers_.sums, gram_parts(v.columns)};
    add_gram_parts(r_, batch(), gram, {}, queue_);
    invert_cholesky({static_cast<int>(r_), batch(), gram, scale, small(0)}, queue_);
    return {
        .type = type_, .batch = batch(), .b = small(0), .b_stride = small_stride(), .lower = true, .v = {v}, .rows = v};
  }

  // Q^T in the basis, and Q where subtract() reads it.
  void find_basis() const {
    Transform basis{.type = type_, .batch = batch(), .rows = q_rows()};
    if (n_ > r_) {
      const Matrices signs{buffers_.signs, r_, n_, pitch_of(n_), 0};
      write_signs(type_, signs, queue_);
      multiply_x({.a = signs, .d = z_rows()});
      transform(orthonormalization(z_rows(), 1), queue_);
      multiply_x({.a = z_rows(), .d = q_rows(), .back = true});
      basis = orthonormalization(q_rows(), kBasisScale);
    }
    (wide_ ? basis.columns : basis.second_rows) = wide_ ? buffers_.factor : second_basis();
    transform(basis, queue_);
  }

  // M E in the place of E, or transposed, where subtract() reads it.
  void replace_e(const NormSettings* settings) const {
    const SketchRows e{e_rows(), rows_at(r_).data};
    const GramParts n{buffers_.sums, gram_parts(n_)};
    const GramParts t{sums_of_e(), gram_parts(m_)};
    sum_gram(type_, {q_rows()}, batch(), n.sums, queue_);
    sum_gram(type_, e, batch(), t.sums, queue_);
    add_gram_parts(r_, batch(), n, t, queue_);
    const int r = static_cast<int>(r_);
    invert_poles({r, batch(), n, t, small(0), buffers_.traces}, queue_);
    combine_poles(
        {iterates_.form, r, batch(), settings, buffers_.traces, small(0), buffers_.scalars, iterates_.scalars}, queue_);
    Transform call{.type = type_, .batch = batch(), .b = small(kPoles + 1), .b_stride = small_stride(), .v = e};
    call.second = Transform::Second::kRemainder;
    if (wide_) {
      call.rows = e_rows();
      call.second_rows = rows_at(r_).data;
    } else {
      call.columns = buffers_.factor;
    }
    transform(call, queue_);
  }

  // x[1] = X - Q (M E): one factor has the same r lines twice, the other r lines and their remainders.
  void subtract() const {
    const MatrixShape shape = iterates_.shape;
    Gemm gemm;
    gemm.type = type_;
    gemm.batch = batch();
    gemm.c = x();
    gemm.d = iterates_.x[1];
    gemm.a = {buffers_.factor, shape.rows, 2 * r_, 2 * r_, shape.rows * 2 * r_};
    gemm.b = wide_ ? e_rows() : q_rows();
    gemm.b.rows = 2 * r_;
    gemm.scalars = buffers_.scalars;
    gemm.scalars_stride = 1;
    multiply(gemm, queue_, iterates_.cublas);
  }

  const int64_t r_;
  const int64_t n_;
  const int64_t m_;
  const bool wide_;
  const Half type_;
  const Iterates& iterates_;
  const CapBuffers& buffers_;
  LaunchQueue& queue_;
};

}  // namespace

void cap_spectrum(int sketch, Iterates& iterates, const NormSettings* settings, const CapBuffers& buffers,
                  LaunchQueue& queue) {
  if (sketch_columns(sketch, iterates.n()) == 0) return;
  Cap(sketch, iterates, buffers, queue).run(settings);
  std::swap(iterates.x[0], iterates.x[1]);
}

}  // namespace muster::kernels::cuda
