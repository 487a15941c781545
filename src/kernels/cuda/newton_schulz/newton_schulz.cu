#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "kernels/cuda/elementwise/vector8.cuh"
#include "kernels/cuda/newton_schulz/newton_schulz.h"

namespace muster::kernels::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kWarp = 32;
constexpr int kWarps = kThreads / kWarp;

// Q = Z + a I.
template <typename T>
__global__ void add_identity(const T* z, T* q, int n, int64_t pitch, const Scalars* scalars) {
  const int64_t base = static_cast<int64_t>(blockIdx.y) * n * pitch;
  const float a = scalars->beta;
  for (int row = static_cast<int>(blockIdx.x); row < n; row += static_cast<int>(gridDim.x)) {
    for (int j = static_cast<int>(threadIdx.x) * kOctet; j < n; j += kThreads * kOctet) {
      const int64_t at = base + row * pitch + j;
      Octet octet = load_aligned(z + at);
#pragma unroll
      for (int i = 0; i < kOctet; ++i) octet.v[i] += row == j + i ? a : 0.0F;
      store_aligned(q + at, octet);
    }
  }
}

// rsqrt(sum_j |A_ij|).
template <typename T>
__global__ void find_line_factors(const T* a, int n, int64_t pitch, float* factors) {
  const int64_t line = static_cast<int64_t>(blockIdx.y) * n + blockIdx.x;
  float sum = 0;
  for (int j = static_cast<int>(threadIdx.x) * kOctet; j < n; j += kThreads * kOctet) {
    const Octet octet = load_octet(a + line * pitch + j, n - j);
#pragma unroll
    for (int i = 0; i < kOctet; ++i) sum += fabsf(octet.v[i]);
  }
  sum = block_sum<kThreads>(sum);
  if (threadIdx.x == 0) factors[line] = sum > 0 ? rsqrtf(sum) : 0.0F;
}

// Sums of squares of lines, one warp per line, that make up ||A - d I||^2: up to the diagonal, what is before it twice.
template <typename T>
__global__ void sum_squares(const T* a, int n, int64_t pitch, float diagonal, float* sums) {
  const int row = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / kWarp;
  if (row >= n) return;
  const int64_t line = static_cast<int64_t>(blockIdx.y) * n + row;
  float sum = 0;
  for (int j = static_cast<int>(threadIdx.x) % kWarp * kOctet; j <= row; j += kWarp * kOctet) {
    const Octet octet = load_octet(a + line * pitch + j, n - j);
#pragma unroll
    for (int i = 0; i < kOctet; ++i) {
      const float value = octet.v[i] - (j + i == row ? diagonal : 0.0F);
      const float square = value * value;
      sum += j + i < row ? 2 * square : j + i == row ? square : 0.0F;
    }
  }
  for (int offset = kWarp / 2; offset > 0; offset /= 2) sum += __shfl_down_sync(0xffffffff, sum, offset);
  if (threadIdx.x % kWarp == 0) sums[line] = sum;
}

// The sum of a matrix's lines, by one block per matrix.
__device__ double sum_of_lines(const float* sums, int n) {
  double sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < n; i += kThreads) {
    sum += static_cast<double>(sums[static_cast<int64_t>(blockIdx.x) * n + i]);
  }
  return block_sum<kThreads>(sum);
}

__global__ void write_gram_error(const float* sums, int n, const UpdateMatrix* matrices) {
  const double sum = sum_of_lines(sums, n);
  const UpdateMatrix& matrix = matrices[blockIdx.x];
  const bool active = matrix.active == nullptr || *matrix.active != 0;
  if (threadIdx.x == 0 && active && matrix.gram_error != nullptr) *matrix.gram_error = sum;
}

// t for the scalars of a matrix, by a block.
__global__ void tighten(const float* sums, int n, const double* safety, FirstScalars* scalars) {
  const double sum = sum_of_lines(sums, n);
  if (threadIdx.x != 0 || sum == 0) return;
  const double t = 1 / (*safety * *safety * sqrt(sum));
  const auto scale = [](Scalars& pair, double alpha, double beta) {
    pair = {static_cast<float>(pair.alpha * alpha), static_cast<float>(pair.beta * beta)};
  };
  FirstScalars& own = scalars[blockIdx.x];
  scale(own.polynomial, t * t, t);
  scale(own.grams, t, t);
  scale(own.product, sqrt(t), sqrt(t));
}

// Element (i, j) times the factors of its row and of its column, where there are any.
template <typename T>
__global__ void scale_lines(T* x, int rows, int columns, int64_t pitch, int64_t stride, const float* row_factors,
                            const float* column_factors) {
  const int64_t matrix = blockIdx.y;
  for (int row = static_cast<int>(blockIdx.x); row < rows; row += static_cast<int>(gridDim.x)) {
    const float own = row_factors != nullptr ? row_factors[matrix * rows + row] : 1.0F;
    for (int j = static_cast<int>(threadIdx.x) * kOctet; j < columns; j += kThreads * kOctet) {
      T* const at = x + matrix * stride + row * pitch + j;
      Octet octet = load_octet(at, columns - j);
      if (column_factors != nullptr) {
        const Octet other = load_octet(column_factors + matrix * columns + j, columns - j);
#pragma unroll
        for (int i = 0; i < kOctet; ++i) octet.v[i] *= other.v[i];
      }
#pragma unroll
      for (int i = 0; i < kOctet; ++i) octet.v[i] *= own;
      store_octet(at, octet, columns - j);
    }
  }
}

template <typename T>
class Steps {
 public:
  Steps(const Coefficients& coefficients, const Iterates& iterates, LaunchQueue& queue)
      : coefficients_(coefficients),
        iterates_(iterates),
        wide_(iterates.shape.rows <= iterates.shape.columns),
        n_(std::min(iterates.shape.rows, iterates.shape.columns)),
        queue_(queue) {
    std::vector<Scalars> scalars{{1, 0}};
    for (const Coefficients::Step& step : coefficients.steps) {
      scalars.push_back({static_cast<float>(step.c), static_cast<float>(step.b)});
      scalars.push_back({1, static_cast<float>(step.a)});
    }
    scalars_ = queue.upload(std::span<const Scalars>(scalars));
  }

  int standard_form() const {
    int now = 0;
    for (size_t s = 0; s < coefficients_.steps.size(); ++s) {
      const bool first = s == 0;
      form_gram(now, 0, first ? of_each(&FirstScalars::gram) : of_all(one()));
      if (first) rescale(now, 0);
      multiply_grams(0, 0, 0, 1, polynomial(s));
      const bool last = s + 1 == coefficients_.steps.size();
      multiply_x(1, now, true, first ? of_each(&FirstScalars::product) : of_all(product(s)), last);
      now = 1 - now;
    }
    return now;
  }

  // R is the Gram matrix of what X would be by now, Q what X is to be multiplied with. `a` stays out of Z, whose
  // rounding would lose it.
  int gram_form() const {
    const size_t steps = coefficients_.steps.size();
    int now = 0;
    constexpr int r = 0;
    int q = 1;
    constexpr int z = 2;
    int free = 3;
    ScalarsOf scale = of_each(&FirstScalars::product);  // of X as it came
    form_gram(now, r, of_each(&FirstScalars::gram));
    rescale(now, r);
    for (size_t s = 0; s < steps; ++s) {
      if (starts_anew(s)) {
        multiply_x(q, now, false, std::exchange(scale, of_all(one())), false);
        now = 1 - now;
        form_gram(now, r, of_all(one()));
      }
      if (s == 0 || starts_anew(s)) {
        form_z_and_q(r, z, q, s);
      } else {
        multiply_grams(r, r, r, z, polynomial(s));
        multiply_grams(q, z, q, free, of_all(product(s)));
        std::swap(q, free);
      }
      if (s + 1 == steps || starts_anew(s + 1)) continue;
      multiply_grams(r, z, r, free, s == 0 ? of_each(&FirstScalars::grams) : of_all(product(s)));
      multiply_grams(z, free, free, r, of_all(product(s)));
    }
    multiply_x(q, now, false, scale, true);
    return 1 - now;
  }

  void measure_gram_error(const Matrices& o, const UpdateMatrix* matrices) const {
    const auto n = static_cast<int>(n_);
    form_gram(o, 0, of_all(one()));
    float* const sums = iterates_.lines;
    queue_.launch("gram error", {iterates_.batch, n, address(gram_data(0)), address(sums), address(matrices)},
                  [&](cudaStream_t stream) {
                    const auto batch = static_cast<unsigned>(iterates_.batch);
                    const dim3 lines{static_cast<unsigned>((n + kWarps - 1) / kWarps), batch};
                    sum_squares<<<lines, kThreads, 0, stream>>>(gram_data(0), n, pitch_of(n), 1.0F, sums);
                    write_gram_error<<<batch, kThreads, 0, stream>>>(sums, n, matrices);
                  });
  }

 private:
  // On the device, and how far apart those of two matrices are.
  struct ScalarsOf {
    const Scalars* first;
    int64_t stride;
  };
  static ScalarsOf of_all(const Scalars* scalars) { return {scalars, 0}; }
  ScalarsOf of_each(Scalars FirstScalars::*which) const {
    return {&(iterates_.norms->*which), static_cast<int64_t>(sizeof(FirstScalars) / sizeof(Scalars))};
  }
  const Scalars* one() const { return scalars_; }
  ScalarsOf polynomial(size_t s) const {  // c A^2 + b A
    return s == 0 ? of_each(&FirstScalars::polynomial) : of_all(scalars_ + 1 + 2 * s);
  }
  const Scalars* product(size_t s) const { return scalars_ + 2 + 2 * s; }  // B X + a X

  T* gram_data(int i) const { return static_cast<T*>(iterates_.grams[static_cast<size_t>(i)]); }
  Matrices gram(int i) const { return {gram_data(i), n_, n_, pitch_of(n_), n_ * pitch_of(n_)}; }
  const Matrices& x(int i) const { return iterates_.x[static_cast<size_t>(i)]; }

  Product product_of(const Matrices& a, const Matrices& b, const Matrices& c, const Matrices& d,
                     ScalarsOf scalars) const {
    Product p;
    p.type = half_of(iterates_.form);
    p.a = a;
    p.b = b;
    p.c = c;
    p.d = d;
    p.batch = iterates_.batch;
    p.scalars = scalars.first;
    p.scalars_stride = scalars.stride;
    return p;
  }

  void form_gram(int from, int to, ScalarsOf scalars) const { form_gram(x(from), to, scalars); }
  void form_gram(const Matrices& from, int to, ScalarsOf scalars) const {
    Product p = product_of(from, from, {}, gram(to), scalars);
    p.symmetric = true;
    p.a_transposed = !wide_;
    p.b_transposed = wide_;
    multiply(p, queue_, iterates_.cublas);
  }
  // gram(to) = alpha gram(a) gram(b) + beta gram(c), all of which commute.
  void multiply_grams(int a, int b, int c, int to, ScalarsOf scalars) const {
    multiply(product_of_grams(a, b, c, to, scalars), queue_, iterates_.cublas);
  }
  Product product_of_grams(int a, int b, int c, int to, ScalarsOf scalars) const {
    Product p = product_of(gram(a), gram(b), gram(c), gram(to), scalars);
    p.symmetric = true;
    p.b_transposed = true;
    return p;
  }
  // Z = c R^2 + b R and Q = Z + a I.
  void form_z_and_q(int r, int z, int q, size_t s) const {
    Product p = product_of_grams(r, r, r, z, polynomial(s));
    if (iterates_.cublas == nullptr) {
      p.d_and_identity = gram(q);
      p.identity = product(s);
    }
    multiply(p, queue_, iterates_.cublas);
    if (iterates_.cublas != nullptr) form_q(z, q, product(s));
  }
  // gram(q) X, or X gram(q) for tall matrices, and beta X.
  void multiply_x(int q, int from, bool add, ScalarsOf scalars, bool last) const {
    Product p = product_of(wide_ ? gram(q) : x(from), wide_ ? x(from) : gram(q), add ? x(from) : Matrices{},
                           x(1 - from), scalars);
    p.b_transposed = !wide_;
    if (last) p.row_squares = iterates_.row_squares;
    multiply(p, queue_, iterates_.cublas);
  }

  dim3 rows_grid(int64_t rows) const {
    return {static_cast<unsigned>(std::min<int64_t>(rows, 4096)), static_cast<unsigned>(iterates_.batch)};
  }

  void form_q(int z, int q, const Scalars* scalars) const {
    const T* const from = gram_data(z);
    T* const to = gram_data(q);
    queue_.launch(
        "add identity", {iterates_.batch, n_, address(from), address(to), address(scalars)}, [&](cudaStream_t stream) {
          add_identity<<<rows_grid(n_), kThreads, 0, stream>>>(from, to, static_cast<int>(n_), pitch_of(n_), scalars);
        });
  }

  void rescale(int from, int a) const {
    if (coefficients_.rescale == Coefficients::Rescale::kAol) rescale_lines(from, a);
    if (coefficients_.rescale == Coefficients::Rescale::kGram) rescale_scalars(a);
  }

  // By the norm of A, of what the first step makes of X and A.
  void rescale_scalars(int a) const {
    const auto n = static_cast<int>(n_);
    float* const sums = iterates_.lines;
    FirstScalars* const scalars = iterates_.norms;
    queue_.launch(
        "tighten",
        {iterates_.batch, n, address(gram_data(a)), address(sums), address(iterates_.safety), address(scalars)},
        [&](cudaStream_t stream) {
          const auto batch = static_cast<unsigned>(iterates_.batch);
          const dim3 lines{static_cast<unsigned>((n + kWarps - 1) / kWarps), batch};
          sum_squares<<<lines, kThreads, 0, stream>>>(gram_data(a), n, pitch_of(n), 0.0F, sums);
          tighten<<<batch, kThreads, 0, stream>>>(sums, n, iterates_.safety, scalars);
        });
  }

  // Divides line i of X by sqrt(sum_j |A_ij|), and A accordingly.
  void rescale_lines(int from, int a) const {
    const auto n = static_cast<int>(n_);
    const auto rows = static_cast<int>(iterates_.shape.rows);
    const auto columns = static_cast<int>(iterates_.shape.columns);
    const Matrices& matrices = x(from);
    float* const factors = iterates_.lines;
    queue_.launch("rescale",
                  {iterates_.batch, rows, columns, address(gram_data(a)), address(matrices.data), matrices.stride,
                   address(factors)},
                  [&](cudaStream_t stream) {
                    const dim3 lines{static_cast<unsigned>(n), static_cast<unsigned>(iterates_.batch)};
                    find_line_factors<<<lines, kThreads, 0, stream>>>(gram_data(a), n, pitch_of(n), factors);
                    scale_lines<<<rows_grid(n), kThreads, 0, stream>>>(gram_data(a), n, n, pitch_of(n), n * pitch_of(n),
                                                                       factors, factors);
                    scale_lines<<<rows_grid(rows), kThreads, 0, stream>>>(
                        static_cast<T*>(matrices.data), rows, columns, matrices.pitch, matrices.stride,
                        wide_ ? factors : nullptr, wide_ ? nullptr : factors);
                  });
  }

  const Coefficients& coefficients_;
  const Iterates& iterates_;
  const bool wide_;
  const int64_t n_;
  LaunchQueue& queue_;
  const Scalars* scalars_;
};

// The largest singular value of the result stays bounded if each step sees its input off by this much either way.
bool tolerates(const Coefficients& coefficients, double off) {
  constexpr int kPoints = 1000;
  constexpr double kMost = 1.5;
  for (int i = 1; i <= kPoints; ++i) {
    double low = i / (kPoints * coefficients.safety);
    double high = low;
    for (const Coefficients::Step& step : coefficients.steps) {
      const auto value = [&](double x) { return x * (step.a + x * x * (step.b + x * x * step.c)); };
      const double images[] = {value(low * (1 - off)), value(low * (1 + off)), value(high * (1 - off)),
                               value(high * (1 + off))};
      low = *std::min_element(images, images + 4);
      high = *std::max_element(images, images + 4);
    }
    if (!(std::max(std::abs(low), std::abs(high)) <= kMost)) return false;
  }
  return true;
}

}  // namespace

bool long_enough_for_gram(MatrixShape shape) {
  return std::max(shape.rows, shape.columns) >= 2 * std::min(shape.rows, shape.columns);
}

bool tolerates_gram(const Coefficients& coefficients) { return tolerates(coefficients, 0.02); }

Form form_of(MatrixShape shape, const Coefficients& coefficients) {
  return long_enough_for_gram(shape) && tolerates_gram(coefficients) ? Form::kGram : Form::kStandard;
}

double half_safety(const Coefficients& coefficients) {
  constexpr double kMargin = 1.02;
  return coefficients.safety * (tolerates(coefficients, 0.01) ? 1 : kMargin);
}

int newton_schulz(const Coefficients& coefficients, const Iterates& iterates, LaunchQueue& queue) {
  if (iterates.form == Form::kGram) return Steps<__half>(coefficients, iterates, queue).gram_form();
  return Steps<__nv_bfloat16>(coefficients, iterates, queue).standard_form();
}

void measure_gram_error(const Iterates& iterates, const Matrices& o, const UpdateMatrix* matrices, LaunchQueue& queue) {
  const Coefficients none;
  if (iterates.form == Form::kGram) {
    Steps<__half>(none, iterates, queue).measure_gram_error(o, matrices);
  } else {
    Steps<__nv_bfloat16>(none, iterates, queue).measure_gram_error(o, matrices);
  }
}

double newton_schulz_flops(Form form, MatrixShape shape, int64_t steps) {
  const int64_t n = std::min(shape.rows, shape.columns);
  Product square;
  square.a = {nullptr, n, n, n, 0};
  square.d = square.a;
  square.symmetric = true;
  square.batch = 1;
  Product gram = square;
  gram.a.columns = std::max(shape.rows, shape.columns);
  Product x;
  x.a = square.a;
  x.d = {nullptr, shape.rows, shape.columns, 0, 0};
  x.batch = 1;
  const auto count = static_cast<double>(steps);
  if (form == Form::kStandard) return count * (flops(gram) + flops(square) + flops(x));
  double starts = 1;
  for (size_t s = 0; s < static_cast<size_t>(steps); ++s) starts += starts_anew(s) ? 1 : 0;
  return starts * (flops(gram) + flops(x)) + (4 * count - 3 * starts) * flops(square);
}

}  // namespace muster::kernels::cuda
