#include <algorithm>

#include "kernels/cuda/newton_schulz/gram_kernels.h"
#include "kernels/cuda/newton_schulz/vector8.cuh"

namespace muster::kernels::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kWarp = 32;
constexpr int kWarps = kThreads / kWarp;

// Q = Z + a I.
template <typename T>
__global__ void add_identity_kernel(const T* z, T* q, int n, int64_t pitch, const Scalars* scalars) {
  const int64_t base = static_cast<int64_t>(blockIdx.y) * n * pitch;
  const float a = scalars->beta;
  for (int row = static_cast<int>(blockIdx.x); row < n; row += static_cast<int>(gridDim.x)) {
    for (int j = static_cast<int>(threadIdx.x) * Vector8::kSize; j < n; j += kThreads * Vector8::kSize) {
      const int64_t at = base + row * pitch + j;
      Vector8 vector = load_aligned(z + at);
#pragma unroll
      for (int i = 0; i < Vector8::kSize; ++i) vector.v[i] += row == j + i ? a : 0.0F;
      store_aligned(q + at, vector);
    }
  }
}

// factors[i] = rsqrt(sum_j |A_ij|).
template <typename T>
__global__ void find_line_factors(const T* a, int n, int64_t pitch, float* factors) {
  const int64_t line = static_cast<int64_t>(blockIdx.y) * n + blockIdx.x;
  float sum = 0;
  for (int j = static_cast<int>(threadIdx.x) * Vector8::kSize; j < n; j += kThreads * Vector8::kSize) {
    const Vector8 vector = load_vector8(a + line * pitch + j, n - j);
#pragma unroll
    for (int i = 0; i < Vector8::kSize; ++i) sum += fabsf(vector.v[i]);
  }
  sum = block_sum<kThreads>(sum);
  if (threadIdx.x == 0) factors[line] = sum > 0 ? rsqrtf(sum) : 0.0F;
}

// Sums that add up to ||A - d I||^2 for a symmetric A: one warp per row adds the squares up to the diagonal, those
// before it twice.
template <typename T>
__global__ void sum_row_squares(const T* a, int n, int64_t pitch, float diagonal, float* sums) {
  const int row = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / kWarp;
  if (row >= n) return;
  const int64_t line = static_cast<int64_t>(blockIdx.y) * n + row;
  float sum = 0;
  for (int j = static_cast<int>(threadIdx.x) % kWarp * Vector8::kSize; j <= row; j += kWarp * Vector8::kSize) {
    const Vector8 vector = load_vector8(a + line * pitch + j, n - j);
#pragma unroll
    for (int i = 0; i < Vector8::kSize; ++i) {
      const float value = vector.v[i] - (j + i == row ? diagonal : 0.0F);
      const float square = value * value;
      sum += j + i < row ? 2 * square : j + i == row ? square : 0.0F;
    }
  }
  for (int offset = kWarp / 2; offset > 0; offset /= 2) sum += __shfl_down_sync(0xffffffff, sum, offset);
  if (threadIdx.x % kWarp == 0) sums[line] = sum;
}

// The sum of one matrix's `sums`, by one thread block.
__device__ double sum_of_rows(const float* sums, int n) {
  double sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < n; i += kThreads) {
    sum += static_cast<double>(sums[static_cast<int64_t>(blockIdx.x) * n + i]);
  }
  return block_sum<kThreads>(sum);
}

__global__ void write_gram_error_kernel(const float* sums, int n, const UpdateMatrix* matrices) {
  const double sum = sum_of_rows(sums, n);
  const UpdateMatrix& matrix = matrices[blockIdx.x];
  const bool active = matrix.active == nullptr || *matrix.active != 0;
  if (threadIdx.x == 0 && active && matrix.gram_error != nullptr) *matrix.gram_error = sum;
}

// One thread block per matrix.
__global__ void rescale_scalars_kernel(const float* sums, int n, const double* safety, FirstScalars* scalars) {
  const double sum = sum_of_rows(sums, n);
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

// Multiplies element (i, j) by the factors of row i and column j. A null pointer stands for ones.
template <typename T>
__global__ void scale_lines(const Matrices x, const float* row_factors, const float* column_factors) {
  const auto rows = static_cast<int>(x.rows);
  const auto columns = static_cast<int>(x.columns);
  const int64_t matrix = blockIdx.y;
  for (int row = static_cast<int>(blockIdx.x); row < rows; row += static_cast<int>(gridDim.x)) {
    const float own = row_factors != nullptr ? row_factors[matrix * rows + row] : 1.0F;
    for (int j = static_cast<int>(threadIdx.x) * Vector8::kSize; j < columns; j += kThreads * Vector8::kSize) {
      T* const at = static_cast<T*>(x.data) + matrix * x.stride + row * x.pitch + j;
      Vector8 vector = load_vector8(at, columns - j);
      if (column_factors != nullptr) {
        const Vector8 other = load_vector8(column_factors + matrix * columns + j, columns - j);
#pragma unroll
        for (int i = 0; i < Vector8::kSize; ++i) vector.v[i] *= other.v[i];
      }
#pragma unroll
      for (int i = 0; i < Vector8::kSize; ++i) vector.v[i] *= own;
      store_vector8(at, vector, columns - j);
    }
  }
}

dim3 rows_grid(const Iterates& iterates, int64_t rows) {
  return {static_cast<unsigned>(std::min<int64_t>(rows, 4096)), static_cast<unsigned>(iterates.batch)};
}

template <typename T>
T* gram_data(const Iterates& iterates, int i) {
  return static_cast<T*>(iterates.grams[static_cast<size_t>(i)]);
}

// Enqueues sum_row_squares of gram(0), into `lines`.
void sum_gram_squares(const Iterates& iterates, float diagonal, cudaStream_t stream) {
  const auto n = static_cast<int>(iterates.n());
  const dim3 grid{static_cast<unsigned>((n + kWarps - 1) / kWarps), static_cast<unsigned>(iterates.batch)};
  with_half(half_of(iterates.form), [&]<typename T>(Type<T>) {
    sum_row_squares<<<grid, kThreads, 0, stream>>>(gram_data<T>(iterates, 0), n, pitch_of(n), diagonal, iterates.lines);
  });
}

}  // namespace

void add_identity(const Iterates& iterates, int z, int q, const Scalars* scalars, LaunchQueue& queue) {
  const int64_t n = iterates.n();
  queue.launch("add identity",
               {iterates.batch, n, address(iterates.gram(z).data), address(iterates.gram(q).data), address(scalars)},
               [&](cudaStream_t stream) {
                 add_identity_kernel<<<rows_grid(iterates, n), kThreads, 0, stream>>>(
                     gram_data<__half>(iterates, z), gram_data<__half>(iterates, q), static_cast<int>(n), pitch_of(n),
                     scalars);
               });
}

void rescale_lines(const Iterates& iterates, LaunchQueue& queue) {
  const int64_t n = iterates.n();
  const Matrices& x = iterates.x[0];
  const Matrices a = iterates.gram(0);
  float* const factors = iterates.lines;
  const bool wide = x.rows <= x.columns;
  queue.launch("rescale",
               {iterates.batch, x.rows, x.columns, address(a.data), address(x.data), x.stride, address(factors)},
               [&](cudaStream_t stream) {
                 with_half(half_of(iterates.form), [&]<typename T>(Type<T>) {
                   const dim3 lines{static_cast<unsigned>(n), static_cast<unsigned>(iterates.batch)};
                   find_line_factors<<<lines, kThreads, 0, stream>>>(gram_data<T>(iterates, 0), static_cast<int>(n),
                                                                     a.pitch, factors);
                   scale_lines<T><<<rows_grid(iterates, n), kThreads, 0, stream>>>(a, factors, factors);
                   scale_lines<T><<<rows_grid(iterates, x.rows), kThreads, 0, stream>>>(x, wide ? factors : nullptr,
                                                                                        wide ? nullptr : factors);
                 });
               });
}

void rescale_scalars(const Iterates& iterates, LaunchQueue& queue) {
  const auto n = static_cast<int>(iterates.n());
  queue.launch("rescale scalars",
               {iterates.batch, n, address(iterates.gram(0).data), address(iterates.lines), address(iterates.safety),
                address(iterates.scalars)},
               [&](cudaStream_t stream) {
                 sum_gram_squares(iterates, 0.0F, stream);
                 rescale_scalars_kernel<<<static_cast<unsigned>(iterates.batch), kThreads, 0, stream>>>(
                     iterates.lines, n, iterates.safety, iterates.scalars);
               });
}

void write_gram_error(const Iterates& iterates, const UpdateMatrix* matrices, LaunchQueue& queue) {
  const auto n = static_cast<int>(iterates.n());
  queue.launch("gram error",
               {iterates.batch, n, address(iterates.gram(0).data), address(iterates.lines), address(matrices)},
               [&](cudaStream_t stream) {
                 sum_gram_squares(iterates, 1.0F, stream);
                 write_gram_error_kernel<<<static_cast<unsigned>(iterates.batch), kThreads, 0, stream>>>(iterates.lines,
                                                                                                         n, matrices);
               });
}

}  // namespace muster::kernels::cuda
