// Inverses of r x r matrices in f64, where r is the number of columns of a sketch, and what follows from them.
//
// One thread block has one matrix in its registers: thread (y, x) of 16 x 16 has the elements (y + 16 u, x + 16 w).
#include "kernels/cuda/newton_schulz/spectral_cap_kernels.h"
#include "kernels/cuda/newton_schulz/vector8.cuh"
#include "kernels/cuda/newton_schulz/with_sketch.cuh"

namespace muster::kernels::cuda {

namespace {

constexpr int kSide = 16;
constexpr int kThreads = kSide * kSide;

template <int kR>
struct Small {
  static constexpr int kOwn = kR / kSide;

  double v[kOwn][kOwn];

  // Calls f(i, j, element) for every element of this thread.
  template <typename F>
  __device__ void each(const F& f) {
    const int y = static_cast<int>(threadIdx.x) / kSide;
    const int x = static_cast<int>(threadIdx.x) % kSide;
#pragma unroll
    for (int u = 0; u < kOwn; ++u) {
#pragma unroll
      for (int w = 0; w < kOwn; ++w) f(y + kSide * u, x + kSide * w, v[u][w]);
    }
  }
};

// A column and a row of the matrix, for all threads. Two, so that one may be read while the next is written.
template <int kR>
struct Pivots {
  double column[2][kR];
  double row[2][kR];
};

// Calls step(k, column, row) for every k, when column k and row k of the matrix are in shared memory.
template <int kR, typename F>
__device__ void eliminate(Small<kR>& a, Pivots<kR>& shared, const F& step) {
  const int y = static_cast<int>(threadIdx.x) / kSide;
  const int x = static_cast<int>(threadIdx.x) % kSide;
#pragma unroll
  for (int part = 0; part < Small<kR>::kOwn; ++part) {
    for (int i = 0; i < kSide; ++i) {
      const int k = kSide * part + i;
      double* const column = shared.column[k % 2];
      double* const row = shared.row[k % 2];
      if (x == i) {
#pragma unroll
        for (int u = 0; u < Small<kR>::kOwn; ++u) column[y + kSide * u] = a.v[u][part];
      }
      if (y == i) {
#pragma unroll
        for (int w = 0; w < Small<kR>::kOwn; ++w) row[x + kSide * w] = a.v[part][w];
      }
      __syncthreads();
      step(k, column, row);
    }
  }
}

// The symmetric matrix of which the lower triangle is the sum of `parts`, times `factor`, plus the ridge. Returns the
// trace.
template <int kR>
__device__ double load_gram(const float* sums, int64_t parts, double factor, Small<kR>& gram) {
  const float* const own = sums + static_cast<int64_t>(blockIdx.y) * parts * kR * kR;
  double diagonal = 0;
  gram.each([&](int i, int j, double& element) {
    const int at = max(i, j) * kR + min(i, j);
    double sum = 0;
    for (int64_t p = 0; p < parts; ++p) sum += static_cast<double>(own[p * kR * kR + at]);
    element = factor * sum;
    if (i == j) diagonal += element;
  });
  const double trace = block_sum<kThreads>(diagonal);
  const double ridge = trace == 0 ? 1 : kGramRidge * trace;
  gram.each([&](int i, int j, double& element) { element += i == j ? ridge : 0.0; });
  return trace == 0 ? 0 : trace + kR * ridge;
}

// Eliminates below the diagonal, which leaves the pivots there, and the inverse of the unit factor below.
template <int kR>
__global__ void __launch_bounds__(kThreads) invert_cholesky_kernel(const InverseCholesky call) {
  __shared__ Pivots<kR> shared;
  Small<kR> a;
  load_gram<kR>(call.sums, call.parts, 1, a);
  eliminate<kR>(a, shared, [&](int k, const double* column, const double* row) {
    const double inverse = 1 / row[k];
    a.each([&](int i, int j, double& element) {
      if (i <= k) return;
      const double factor = column[i] * inverse;
      element = j == k ? -factor : element - factor * row[j];
    });
  });
  __syncthreads();
  double* const pivots = shared.column[0];
  a.each([&](int i, int j, double& element) {
    if (i == j) pivots[i] = element;
  });
  __syncthreads();
  float* const out = call.inverse + static_cast<int64_t>(blockIdx.y) * kSmallMatrices * kR * kR;
  a.each([&](int i, int j, double& element) {
    const double value = j > i ? 0.0 : (j == i ? 1.0 : element) / sqrt(pivots[i]);
    out[i * kR + j] = static_cast<float>(call.scale * value);
  });
}

// The sum of the elementwise product with a Gram matrix.
template <int kR>
__device__ double trace_of_product(const float* sums, int64_t parts, double factor, Small<kR>& a) {
  Small<kR> gram;
  load_gram<kR>(sums, parts, factor, gram);
  double sum = 0;
#pragma unroll
  for (int u = 0; u < Small<kR>::kOwn; ++u) {
#pragma unroll
    for (int w = 0; w < Small<kR>::kOwn; ++w) sum += a.v[u][w] * gram.v[u][w];
  }
  return block_sum<kThreads>(sum);
}

__constant__ const double kPoleShifts[kPoles] = {kInverseRootPoles[0].shift, kInverseRootPoles[1].shift,
                                                 kInverseRootPoles[2].shift, kInverseRootPoles[3].shift};
__constant__ const double kPoleWeights[kPoles] = {kInverseRootPoles[0].weight, kInverseRootPoles[1].weight,
                                                  kInverseRootPoles[2].weight, kInverseRootPoles[3].weight};

// Block 0 of a matrix inverts N, block 1 T / d + N, of which it keeps the trace, and one block each the poles'.
template <int kR>
__global__ void __launch_bounds__(kThreads) invert_poles_kernel(const PoleInverses call) {
  __shared__ Pivots<kR> shared;
  constexpr double kScale = 1.0 / (static_cast<double>(kBasisScale) * static_cast<double>(kBasisScale));
  const int which = static_cast<int>(blockIdx.x);
  Small<kR> a;
  load_gram<kR>(call.n_sums, call.n_parts, kScale, a);
  double d = 0;
  if (which > 0) {
    Small<kR> t;
    d = kCapFloor * load_gram<kR>(call.t_sums, call.t_parts, kScale, t);
    const double inverse = d == 0 ? 0 : 1 / d;
    const double weight = which == 1 ? 1 : 1 + kPoleShifts[which - 2];
#pragma unroll
    for (int u = 0; u < Small<kR>::kOwn; ++u) {
#pragma unroll
      for (int w = 0; w < Small<kR>::kOwn; ++w) a.v[u][w] = inverse * t.v[u][w] + weight * a.v[u][w];
    }
  }
  eliminate<kR>(a, shared, [&](int k, const double* column, const double* row) {
    const double inverse = 1 / row[k];
    a.each([&](int i, int j, double& element) {
      if (i == k) {
        element = j == k ? inverse : row[j] * inverse;
      } else {
        const double factor = column[i] * inverse;
        element = j == k ? -factor : element - factor * row[j];
      }
    });
  });
  const int64_t matrix = blockIdx.y;
  if (which != 1) {
    float* const out = call.small + (matrix * kSmallMatrices + max(which - 1, 0)) * kR * kR;
    a.each([&](int i, int j, double& element) { out[i * kR + j] = static_cast<float>(element); });
  }
  if (which > 1) return;
  const bool of_n = which == 0;
  const double trace =
      trace_of_product<kR>(of_n ? call.t_sums : call.n_sums, of_n ? call.t_parts : call.n_parts, kScale, a);
  if (threadIdx.x != 0) return;
  CapTraces& traces = call.traces[matrix];
  (of_n ? traces.found : traces.within) = trace;
  if (!of_n) traces.d = d;
}

// The norm of X after the cap, as a share of the norm before, and the power of two that brings it to between 1 and 2,
// or to between 256 and 512 for fp16.
template <Form kForm>
__device__ void write_scalars(const CapScalars& call, double c) {
  const int64_t matrix = blockIdx.y;
  const CapTraces& traces = call.traces[matrix];
  const double safety = call.settings->safety;
  const double stays = max(1 / (safety * safety) - traces.found, 0.0);
  const double norm = sqrt(stays + c * c * traces.d * (call.r - traces.within));
  FirstScalars& first = call.first[matrix];
  const double f = static_cast<double>(first.product.alpha);
  constexpr int kWanted = kForm == Form::kGram ? 8 : 0;
  const double power = norm > 0 ? ldexp(1.0, kWanted - ilogb(norm)) : 1;
  call.scalars[matrix] = {static_cast<float>(-power / (static_cast<double>(kBasisScale) * kBasisScale)),
                          static_cast<float>(power * f)};
  double next = 1 / (safety * norm * power);
  if (f == 0) next = 0;
  if (isnan(f)) next = nan("");
  const auto once = static_cast<float>(next);
  first.gram = {static_cast<float>(next * next), 0};
  first.product = {once, once * static_cast<float>(call.settings->first.a)};
}

// M = N^-1 - c H.
template <int kR, Form kForm>
__global__ void combine_poles_kernel(const CapScalars call) {
  const int64_t matrix = blockIdx.y;
  const double c = kCapLevel * sqrt(kR / call.traces[matrix].within);
  float* const small = call.small + matrix * kSmallMatrices * kR * kR;
  const int at = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  double h = 0;
#pragma unroll
  for (int p = 0; p < kPoles; ++p) h += kPoleWeights[p] * static_cast<double>(small[(p + 1) * kR * kR + at]);
  small[(kPoles + 1) * kR * kR + at] = static_cast<float>(static_cast<double>(small[at]) - c * h);
  if (blockIdx.x == 0 && threadIdx.x == 0) write_scalars<kForm>(call, c);
}

dim3 grid_of(int64_t across, int64_t batch) { return {static_cast<unsigned>(across), static_cast<unsigned>(batch)}; }

}  // namespace

void invert_cholesky(const InverseCholesky& call, LaunchQueue& queue) {
  queue.launch(
      "sketch cholesky",
      {call.r, call.batch, call.parts, address(call.sums), static_cast<int64_t>(call.scale), address(call.inverse)},
      [&](cudaStream_t stream) {
        with_sketch(call.r, [&]<int kR>(Value<kR>) {
          invert_cholesky_kernel<kR><<<grid_of(1, call.batch), kThreads, 0, stream>>>(call);
        });
      });
}

void invert_poles(const PoleInverses& call, LaunchQueue& queue) {
  queue.launch("sketch inverses",
               {call.r, call.batch, call.n_parts, call.t_parts, address(call.n_sums), address(call.t_sums),
                address(call.small), address(call.traces)},
               [&](cudaStream_t stream) {
                 with_sketch(call.r, [&]<int kR>(Value<kR>) {
                   invert_poles_kernel<kR><<<grid_of(kPoles + 2, call.batch), kThreads, 0, stream>>>(call);
                 });
               });
}

void combine_poles(const CapScalars& call, LaunchQueue& queue) {
  queue.launch("sketch scalars",
               {static_cast<int64_t>(call.form), call.r, call.batch, address(call.settings), address(call.traces),
                address(call.small), address(call.scalars), address(call.first)},
               [&](cudaStream_t stream) {
                 with_sketch(call.r, [&]<int kR>(Value<kR>) {
                   auto* const kernel = call.form == Form::kGram ? combine_poles_kernel<kR, Form::kGram>
                                                                 : combine_poles_kernel<kR, Form::kStandard>;
                   kernel<<<grid_of(kR * kR / kThreads, call.batch), kThreads, 0, stream>>>(call);
                 });
               });
}

}  // namespace muster::kernels::cuda
