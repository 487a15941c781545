#include "kernels/cpu/newton_schulz.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <utility>

#include "kernels/cpu/batch_work.h"
#include "kernels/cpu/spectral_cap.h"
#include "kernels/spectral_cap.h"
#include "muster/error.h"

namespace muster::kernels::cpu {
namespace {

// Rows per partial sum of squares. Another number would change the norm's bits.
constexpr int64_t kNormRows = 64;
// FLOPs below which the work takes less time than waking a thread.
constexpr double kLeastSharedFlops = 4e6;

int64_t align(int64_t bytes) { return (bytes + 63) / 64 * 64; }
int64_t row_blocks(int64_t rows) { return (rows + kNormRows - 1) / kNormRows; }

// The workspace of one matrix: two buffers of its size, its Gram matrices, partial sums and line factors. The cap comes
// before the second buffer and the Gram matrices are in use, and has its scratch there.
struct WorkspaceLayout {
  WorkspaceLayout(Form form, MatrixShape shape)
      : n(std::min(shape.rows, shape.columns)),
        x_bytes(align(shape.rows * shape.columns * 4)),
        gram_bytes(align(n * n * 4)),
        grams(form == Form::kGram ? 4 : 2),
        sums_at(x_bytes + std::max(x_bytes + grams * gram_bytes, spectral_cap_bytes(shape))),
        total(sums_at + align(row_blocks(shape.rows) * 8) + align(n * 4)) {}

  int64_t n;  // the shorter side; Gram matrices are n x n
  int64_t x_bytes;
  int64_t gram_bytes;
  int64_t grams;
  int64_t sums_at;
  int64_t total;
};

// Matrices that go through the steps together.
struct Share {
  std::span<const MatrixPair> matrices;
  char* scratch;     // WorkspaceLayout::total bytes per matrix
  ThreadPool* pool;  // null: this thread alone
};

class Iteration {
 public:
  Iteration(const NewtonSchulzContext& context, const NewtonSchulzOptions& options, MatrixShape shape,
            const Share& share)
      : elementwise_(context.elementwise),
        form_(context.form),
        options_(options),
        shape_(shape),
        layout_(context.form, shape),
        wide_(shape.rows <= shape.columns),
        matrices_(share.matrices),
        scratch_(share.scratch),
        work_(std::ssize(share.matrices), share.pool) {}

  void run() {
    normalize();
    if (options_.coefficients.sketch != 0) cap();
    form_ == Form::kGram ? gram_form() : standard_form();
  }

 private:
  // The buffers of matrix m. At any time, buffers of one index have the same role for all matrices.
  float* x(int64_t m, int i) const { return reinterpret_cast<float*>(base(m) + i * layout_.x_bytes); }
  float* gram(int64_t m, int i) const {
    return reinterpret_cast<float*>(base(m) + 2 * layout_.x_bytes + i * layout_.gram_bytes);
  }
  double* partial_sums(int64_t m) const { return reinterpret_cast<double*>(base(m) + layout_.sums_at); }
  float* line_factors(int64_t m) const {
    return reinterpret_cast<float*>(base(m) + layout_.total - align(layout_.n * 4));
  }
  char* base(int64_t m) const { return scratch_ + m * layout_.total; }

  // For every matrix, partial sums of the squares of `rows` rows, for frobenius_norm. row(m, i) points to row i.
  template <typename Row>
  void sum_squares(Dtype dtype, int64_t rows, int64_t columns, const Row& row) const {
    work_.each(row_blocks(rows), [&](int64_t m, int64_t block) {
      double sum = 0;
      for (int64_t i = block * kNormRows; i < std::min(rows, (block + 1) * kNormRows); ++i) {
        sum += elementwise_.sum_squares(dtype, row(m, i), columns);
      }
      partial_sums(m)[block] = sum;
    });
  }
  double frobenius_norm(int64_t m, int64_t rows) const {
    return std::sqrt(std::accumulate(partial_sums(m), partial_sums(m) + row_blocks(rows), 0.0));
  }

  void normalize() {
    const int64_t rows = shape_.rows;
    const int64_t columns = shape_.columns;
    const auto input = [&](int64_t m, int64_t row) {
      return static_cast<const char*>(matrices_[m].input) + row * columns * byte_size(options_.input);
    };
    sum_squares(options_.input, rows, columns, input);
    work_.each(row_blocks(rows), [&](int64_t m, int64_t block) {
      const double norm = frobenius_norm(m, rows);
      const double factor = norm == 0 ? 0 : 1 / (options_.coefficients.safety * norm + options_.eps);
      const int64_t begin = block * kNormRows;
      const int64_t count = (std::min(rows, begin + kNormRows) - begin) * columns;
      elementwise_.normalize(options_.input, input(m, begin), count, factor, x(m, 0) + begin * columns);
    });
  }

  void cap() const {
    char* const scratch = reinterpret_cast<char*>(x(0, 1));
    cap_spectrum(work_, shape_, options_.coefficients.sketch, {scratch_, scratch, layout_.total});
  }

  // gram(to) = the Gram matrix of x(from)
  void form_gram(int from, int to) const {
    form_gram([&](int64_t m) { return x(m, from); }, to);
  }
  // gram(to) = the Gram matrix of from(m)
  template <typename From>
  void form_gram(const From& from, int to) const {
    work_.multiply([&](int64_t m) {
      const Operand plain{from(m), shape_.columns, Transpose::kNo};
      const Operand transposed{from(m), shape_.columns, Transpose::kYes};
      SymmetricProduct product{.n = layout_.n, .inner = std::max(shape_.rows, shape_.columns)};
      product.a = wide_ ? plain : transposed;
      product.b = wide_ ? transposed : plain;
      product.c = gram(m, to);
      return product;
    });
  }

  // gram(to) = a I + b R + c R^2, with R = gram(from). In f32, unlike in half precision, adding `a` to the diagonal
  // costs no accuracy, and it saves adding a X in every product with X.
  void form_polynomial(const Coefficients::Step& step, int from, int to) const {
    work_.multiply([&](int64_t m) {
      SymmetricProduct product = square_product(m, from, from, to);
      product.alpha = static_cast<float>(step.c);
      product.beta = static_cast<float>(step.b);
      product.d = gram(m, from);
      product.diagonal = static_cast<float>(step.a);
      return product;
    });
  }

  // gram(to) = gram(a) gram(b); the two commute
  void multiply_grams(int a, int b, int to) const {
    work_.multiply([&](int64_t m) { return square_product(m, a, b, to); });
  }

  SymmetricProduct square_product(int64_t m, int a, int b, int to) const {
    SymmetricProduct product{.n = layout_.n, .inner = layout_.n};
    product.a = {gram(m, a), layout_.n};
    product.b = {gram(m, b), layout_.n};
    product.c = gram(m, to);
    return product;
  }

  // to(m) = gram(q) x(from), or x(from) gram(q) for tall matrices
  template <typename To>
  void multiply_x(int q, int from, const To& to) const {
    work_.multiply([&](int64_t m) {
      const float* left = wide_ ? gram(m, q) : x(m, from);
      const float* right = wide_ ? x(m, from) : gram(m, q);
      const int64_t inner = layout_.n;
      return Product{shape_.rows, shape_.columns, inner, {left, inner}, {right, shape_.columns}, to(m)};
    });
  }

  // The last product, which goes directly to the output if that is f32.
  void finish(int q, int from) const {
    const auto o = [&](int64_t m) {
      return options_.output == Dtype::kF32 ? static_cast<float*>(matrices_[m].output) : x(m, 1 - from);
    };
    multiply_x(q, from, o);
    measure_gram_error(o);
    if (options_.output == Dtype::kF32) return;
    work_.each(row_blocks(shape_.rows), [&](int64_t m, int64_t block) {
      const int64_t begin = block * kNormRows * shape_.columns;
      const int64_t end = std::min(shape_.rows, (block + 1) * kNormRows) * shape_.columns;
      char* output = static_cast<char*>(matrices_[m].output) + begin * byte_size(options_.output);
      elementwise_.scale(x(m, 1 - from) + begin, end - begin, 1, options_.output, output);
    });
  }

  // Measures matrices that ask for it. Overwrites gram(0), which the steps no longer need.
  template <typename From>
  void measure_gram_error(const From& o) const {
    if (std::ranges::none_of(matrices_, [](const MatrixPair& pair) { return pair.gram_error != nullptr; })) return;
    form_gram(o, 0);
    const int64_t n = layout_.n;
    work_.each(n, [&](int64_t m, int64_t i) { gram(m, 0)[i * n + i] -= 1; });
    sum_squares(Dtype::kF32, n, n, [&](int64_t m, int64_t i) { return gram(m, 0) + i * n; });
    work_.each(1, [&](int64_t m, int64_t) {
      if (matrices_[m].gram_error != nullptr) *matrices_[m].gram_error = std::pow(frobenius_norm(m, n), 2);
    });
  }

  // Divides line i of X by sqrt(sum_j |A_ij|), and A accordingly.
  void rescale_aol(int from, int a) const {
    const int64_t n = layout_.n;
    work_.each(1, [&](int64_t m, int64_t) {
      for (int64_t i = 0; i < n; ++i) {
        double sum = 0;
        for (int64_t j = 0; j < n; ++j) sum += std::abs(static_cast<double>(gram(m, a)[i * n + j]));
        line_factors(m)[i] = static_cast<float>(sum > 0 ? 1 / std::sqrt(sum) : 0);
      }
    });
    work_.each(n, [&](int64_t m, int64_t i) {
      const float* factors = line_factors(m);
      float* line = gram(m, a) + i * n;
      for (int64_t j = 0; j < n; ++j) line[j] *= factors[i] * factors[j];
    });
    work_.each(shape_.rows, [&](int64_t m, int64_t i) {
      const float* factors = line_factors(m);
      float* row = x(m, from) + i * shape_.columns;
      if (wide_) {
        elementwise_.scale(row, shape_.columns, factors[i], Dtype::kF32, row);
      } else {
        elementwise_.multiply(row, shape_.columns, factors, Dtype::kF32, row);
      }
    });
  }

  // Divides X by safety sqrt(||A||_F), and A accordingly.
  void rescale_gram(int from, int a) const {
    const int64_t n = layout_.n;
    sum_squares(Dtype::kF32, n, n, [&](int64_t m, int64_t i) { return gram(m, a) + i * n; });
    const auto factor = [&](int64_t m) {
      const double norm = frobenius_norm(m, n);
      return norm == 0 ? 0 : 1 / (options_.coefficients.safety * std::sqrt(norm));
    };
    const auto scale = [&](float* values, int64_t block, int64_t rows, int64_t columns, double by) {
      const int64_t begin = block * kNormRows;
      const int64_t count = (std::min(rows, begin + kNormRows) - begin) * columns;
      float* const at = values + begin * columns;
      elementwise_.scale(at, count, static_cast<float>(by), Dtype::kF32, at);
    };
    work_.each(row_blocks(n),
               [&](int64_t m, int64_t block) { scale(gram(m, a), block, n, n, std::pow(factor(m), 2)); });
    work_.each(row_blocks(shape_.rows),
               [&](int64_t m, int64_t block) { scale(x(m, from), block, shape_.rows, shape_.columns, factor(m)); });
  }

  void rescale(int from, int a) const {
    if (options_.coefficients.rescale == Coefficients::Rescale::kAol) rescale_aol(from, a);
    if (options_.coefficients.rescale == Coefficients::Rescale::kGram) rescale_gram(from, a);
  }

  void standard_form() {
    const auto& steps = options_.coefficients.steps;
    int now = 0;
    for (size_t s = 0; s < steps.size(); ++s) {
      form_gram(now, 0);
      if (s == 0) rescale(now, 0);
      form_polynomial(steps[s], 0, 1);
      if (s + 1 == steps.size()) return finish(1, now);
      multiply_x(1, now, [&](int64_t m) { return x(m, 1 - now); });
      now = 1 - now;
    }
  }

  // Q is the product of the steps' polynomials, and R the Gram matrix of Q X. Rounding makes small eigenvalues of R
  // negative, and every step more than doubles them: after two steps X becomes Q X, and both restart from it.
  void gram_form() {
    constexpr size_t kRestart = 2;
    const auto& steps = options_.coefficients.steps;
    int now = 0;
    int r = 0;
    int q = 1;
    int z = 2;
    int free = 3;
    form_gram(now, r);
    rescale(now, r);
    for (size_t s = 0; s < steps.size(); ++s) {
      const bool fresh = s == 0 || s == kRestart;
      if (s == kRestart) {
        multiply_x(q, now, [&](int64_t m) { return x(m, 1 - now); });
        now = 1 - now;
        form_gram(now, r);
      }
      form_polynomial(steps[s], r, z);
      if (!fresh) {
        multiply_grams(q, z, free);
        std::swap(q, free);
      }
      const bool last = s + 1 == steps.size();
      if (!last && s + 1 != kRestart) {
        // R <- Z R Z. Where Q is fresh, its buffer is not in use yet.
        const int t = fresh ? q : free;
        multiply_grams(r, z, t);
        multiply_grams(z, t, r);
      }
      if (fresh) std::swap(q, z);
    }
    finish(q, now);
  }

  const Elementwise& elementwise_;
  const Form form_;
  const NewtonSchulzOptions& options_;
  const MatrixShape shape_;
  const WorkspaceLayout layout_;
  const bool wide_;
  const std::span<const MatrixPair> matrices_;
  char* const scratch_;
  const BatchWork work_;
};

}  // namespace

// Gram: (14 + 6 r) n^3 FLOPs against (5 + 15 r) n^3, with r = long side / short side.
Form form_of(MatrixShape shape) {
  const int64_t longer = std::max(shape.rows, shape.columns);
  const int64_t shorter = std::min(shape.rows, shape.columns);
  return 2 * longer >= 3 * shorter ? Form::kGram : Form::kStandard;
}

int64_t newton_schulz_matrix_bytes(Form form, MatrixShape shape) { return WorkspaceLayout(form, shape).total; }

void newton_schulz(const NewtonSchulzContext& context, const NewtonSchulzOptions& options, MatrixShape shape,
                   std::span<const MatrixPair> batch, Workspace workspace) {
  if (batch.empty() || shape.rows == 0 || shape.columns == 0) return;
  if (options.coefficients.steps.empty()) throw InvalidArgument("coefficients: no steps");
  if (!is_sketch(options.coefficients.sketch)) {
    throw InvalidArgument("coefficients: sketch " + std::to_string(options.coefficients.sketch));
  }
  const int64_t each = newton_schulz_matrix_bytes(context.form, shape);
  const int64_t room = workspace.bytes / each;
  if (room < 1) {
    throw InvalidArgument("orthogonalize: workspace of " + std::to_string(workspace.bytes) + " bytes, expected " +
                          std::to_string(each));
  }
  char* scratch = static_cast<char*>(workspace.data);
  const int64_t count = static_cast<int64_t>(batch.size());
  const int64_t threads = context.pool.threads();

  // A thread that has a matrix to itself does not wait between products, and the matrix stays in its core's cache.
  int64_t alone = room >= threads ? count - count % threads : 0;
  const int64_t steps = static_cast<int64_t>(options.coefficients.steps.size());
  const bool small = newton_schulz_flops(context.form, shape, steps) < kLeastSharedFlops;
  if (small && room >= threads) alone = count;
  context.pool.run(alone, [&](int64_t i, int thread) {
    Iteration(context, options, shape, {batch.subspan(i, 1), scratch + thread * each, nullptr}).run();
  });

  // All threads work on strips of the matrices that are left.
  ThreadPool* pool = small ? nullptr : &context.pool;
  for (int64_t begin = alone; begin < count; begin += room) {
    const auto rest = batch.subspan(begin, std::min(room, count - begin));
    Iteration(context, options, shape, {rest, scratch, pool}).run();
  }
}

double newton_schulz_flops(Form form, MatrixShape shape, int64_t steps) {
  const int64_t n = std::min(shape.rows, shape.columns);
  const double square = flops(SymmetricProduct{.n = n, .inner = n});
  const double gram = flops(SymmetricProduct{.n = n, .inner = std::max(shape.rows, shape.columns)});
  const double product = flops(Product{.rows = shape.rows, .columns = shape.columns, .inner = n});
  const double count = static_cast<double>(steps);
  if (form == Form::kStandard) return count * (gram + square + product);
  if (steps <= 2) return gram + (steps == 2 ? 5 : 1) * square + product;
  return 2 * (gram + product) + (4 * count - 6) * square;
}

}  // namespace muster::kernels::cpu
