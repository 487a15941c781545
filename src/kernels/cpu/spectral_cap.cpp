#include "kernels/cpu/spectral_cap.h"

#include <algorithm>
#include <tuple>

#include "kernels/cpu/spectral_cap_core.h"
#include "kernels/spectral_cap.h"

namespace muster::kernels::cpu {
namespace {

// Rows per task of what is elementwise.
constexpr int64_t kRows = 64;

int64_t align(int64_t bytes) { return (bytes + 63) / 64 * 64; }
int64_t row_blocks(int64_t rows) { return (rows + kRows - 1) / kRows; }

// The scratch of one matrix. X is n x m here, n <= m: the transpose of a tall one.
struct CapLayout {
  CapLayout(MatrixShape shape, int sketch)
      : n(std::min(shape.rows, shape.columns)),
        m(std::max(shape.rows, shape.columns)),
        r(std::min<int64_t>(n, sketch)),
        whole(n <= sketch),
        square_bytes(align(r * (r + 1) * 8)),
        long_bytes(align(m * r * 4)),
        short_bytes(align(n * r * 4)),
        total(5 * square_bytes + align(r * r * 4) + (whole ? long_bytes : 2 * (long_bytes + short_bytes))) {}

  int64_t n;
  int64_t m;
  int64_t r;   // columns of Q
  bool whole;  // Q is I
  int64_t square_bytes;
  int64_t long_bytes;
  int64_t short_bytes;
  int64_t total;
};

class Cap {
 public:
  Cap(const BatchWork& work, MatrixShape shape, int sketch, const CapBuffers& buffers)
      : work_(work), wide_(shape.rows <= shape.columns), shape_(shape), layout_(shape, sketch), buffers_(buffers) {}

  void run() const { layout_.whole ? cap_all() : cap_largest(); }

 private:
  // r x r in double: the factor of a Gram matrix and its inverse, F^T F, room for an inverse, and the change.
  enum Square { kU, kInverse, kT, kRoom, kChange };

  float* x(int64_t i) const { return reinterpret_cast<float*>(buffers_.x + i * buffers_.stride); }
  char* scratch(int64_t i) const { return buffers_.scratch + i * buffers_.stride; }
  double* square(int64_t i, Square which) const {
    return reinterpret_cast<double*>(scratch(i) + which * layout_.square_bytes);
  }
  // r x r in f32
  float* factor(int64_t i) const { return reinterpret_cast<float*>(scratch(i) + 5 * layout_.square_bytes); }
  // m x r
  float* skinny(int64_t i, int which) const {
    char* const begin = reinterpret_cast<char*>(factor(i)) + align(layout_.r * layout_.r * 4);
    return reinterpret_cast<float*>(begin + which * layout_.long_bytes);
  }
  // n x r
  float* small(int64_t i, int which) const {
    return reinterpret_cast<float*>(reinterpret_cast<char*>(skinny(i, 2)) + which * layout_.short_bytes);
  }

  // X, n x m, and its transpose.
  Operand plain(int64_t i) const { return {x(i), shape_.columns, wide_ ? Transpose::kNo : Transpose::kYes}; }
  Operand transposed(int64_t i) const { return {x(i), shape_.columns, wide_ ? Transpose::kYes : Transpose::kNo}; }
  // A matrix of r columns
  Operand columns(const float* data) const { return {data, layout_.r, Transpose::kNo}; }
  Operand rows(const float* data) const { return {data, layout_.r, Transpose::kYes}; }

  // square(to) = A A^T
  template <typename A>
  void form_gram(const A& a, int64_t n, int64_t inner, Square to) const {
    const auto gram = [&](int64_t i) { return DoubleGram{n, inner, a(i), square(i, to)}; };
    work_.each(tasks(gram(0)), [&](int64_t i, int64_t task) { cpu::run(gram(i), task); });
  }

  // to(i) = orth(from(i)), both of `size` rows: leaves its factor in kU, and the inverse in kInverse.
  template <typename From, typename To>
  void orthonormalize(int64_t size, const From& from, const To& to) const {
    const int64_t r = layout_.r;
    form_gram([&](int64_t i) { return rows(from(i)); }, r, size, kU);
    work_.each(1, [&](int64_t i, int64_t) {
      factor_gram(r, square(i, kU), square(i, kInverse));
      std::copy_n(square(i, kInverse), r * r, factor(i));
    });
    multiply_by_factor(size, from, to);
  }
  template <typename From, typename To>
  void multiply_by_factor(int64_t size, const From& from, const To& to) const {
    const int64_t r = layout_.r;
    work_.multiply([&](int64_t i) { return Product{size, r, r, columns(from(i)), columns(factor(i)), to(i)}; });
  }

  void cap_largest() const {
    const auto [n, m, r] = std::tuple(layout_.n, layout_.m, layout_.r);
    const auto s0 = [&](int64_t i) { return small(i, 0); };
    const auto s1 = [&](int64_t i) { return small(i, 1); };
    const auto l0 = [&](int64_t i) { return skinny(i, 0); };
    const auto l1 = [&](int64_t i) { return skinny(i, 1); };
    const auto multiply_transposed = [&](const auto& from, const auto& to) {
      work_.multiply([&](int64_t i) { return Product{m, r, n, transposed(i), columns(from(i)), to(i)}; });
    };
    draw_signs();
    multiply_transposed(s0, l0);
    orthonormalize(m, l0, l1);
    work_.multiply([&](int64_t i) { return Product{n, r, m, plain(i), columns(l1(i)), s0(i)}; });
    orthonormalize(n, s0, s1);  // Q
    orthonormalize(n, s1, s0);  // Q U^-1
    multiply_transposed(s0, l0);
    form_gram([&](int64_t i) { return rows(l0(i)); }, r, m, kT);
    find_changes();
    work_.each(1, [&](int64_t i, int64_t) { set_factor(i, 1, -1); });
    multiply_by_factor(n, s0, s1);
    // X += (-Q U^-1 K) F^T
    work_.multiply([&](int64_t i) {
      return wide_ ? Product{n, m, r, columns(s1(i)), rows(l0(i)), x(i), Into::kAdd}
                   : Product{m, n, r, columns(l0(i)), rows(s1(i)), x(i), Into::kAdd};
    });
  }

  // With Q = I: X <- ((1 - 1 / nu) I + 1 / nu change) X, where U = sqrt(nu) I.
  void cap_all() const {
    const int64_t r = layout_.r;
    const auto nu = [&](int64_t i) { return square(i, kU)[0] * square(i, kU)[0]; };
    form_gram([&](int64_t i) { return plain(i); }, r, layout_.m, kT);
    work_.each(1, [&](int64_t i, int64_t) {
      double* const gram = square(i, kU);
      std::fill_n(gram, r * r, 0.0);
      for (int64_t k = 0; k < r; ++k) gram[k * (r + 1)] = 1;
      factor_gram(r, gram, square(i, kInverse));
      for (int64_t k = 0; k < r * r; ++k) square(i, kT)[k] /= nu(i);
    });
    find_changes();
    work_.each(1, [&](int64_t i, int64_t) { set_factor(i, 1 / nu(i), 1 - 1 / nu(i)); });
    work_.multiply([&](int64_t i) {
      const Operand own{factor(i), r};
      const Operand values{x(i), shape_.columns};
      return Product{shape_.rows, shape_.columns, r, wide_ ? own : values, wide_ ? values : own, skinny(i, 0)};
    });
    work_.each(row_blocks(shape_.rows), [&](int64_t i, int64_t block) {
      const int64_t begin = block * kRows * shape_.columns;
      const int64_t end = std::min(shape_.rows, (block + 1) * kRows) * shape_.columns;
      std::copy(skinny(i, 0) + begin, skinny(i, 0) + end, x(i) + begin);
    });
  }

  // small(0) = S
  void draw_signs() const {
    const int64_t r = layout_.r;
    work_.each(row_blocks(layout_.n), [&](int64_t i, int64_t block) {
      for (int64_t row = block * kRows; row < std::min(layout_.n, (block + 1) * kRows); ++row) {
        float* const to = small(i, 0) + row * r;
        for (int64_t j = 0; j < r; ++j) {
          const uint32_t signs = sketch_signs(static_cast<uint32_t>(row), static_cast<uint32_t>(j / 32));
          to[j] = (signs >> (j % 32) & 1) != 0 ? -1.0F : 1.0F;
        }
      }
    });
  }

  void find_changes() const {
    work_.each(1, [&](int64_t i, int64_t) {
      find_change({layout_.r, square(i, kU), square(i, kInverse), square(i, kT), square(i, kRoom), square(i, kChange)});
    });
  }

  // factor = scale change + diagonal I, whole
  void set_factor(int64_t i, double scale, double diagonal) const {
    const int64_t r = layout_.r;
    const double* const change = square(i, kChange);
    float* const to = factor(i);
    for (int64_t a = 0; a < r; ++a) {
      for (int64_t b = a; b < r; ++b) {
        to[a * r + b] = static_cast<float>(scale * change[a * r + b] + (a == b ? diagonal : 0));
        to[b * r + a] = to[a * r + b];
      }
    }
  }

  const BatchWork& work_;
  const bool wide_;
  const MatrixShape shape_;
  const CapLayout layout_;
  const CapBuffers& buffers_;
};

}  // namespace

int64_t spectral_cap_bytes(MatrixShape shape) {
  int64_t most = 0;
  for (const int sketch : kSketchColumns) most = std::max(most, CapLayout(shape, sketch).total);
  return most;
}

void cap_spectrum(const BatchWork& work, MatrixShape shape, int sketch, const CapBuffers& buffers) {
  Cap(work, shape, sketch, buffers).run();
}

}  // namespace muster::kernels::cpu
