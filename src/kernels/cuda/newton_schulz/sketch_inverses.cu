// Inverses of r x r matrices, where r is the number of columns of a sketch, and what follows from them. Elimination is
// in f32: kGramRidge keeps pivots positive despite rounding.
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
struct RegisterMatrix {
  static constexpr int kOwn = kR / kSide;

  float v[kOwn][kOwn];

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

// What elimination from top to bottom computes.
enum class Eliminate : uint8_t {
  kBelow,       // only rows below a pivot: on and below the diagonal the inverse of the unit lower factor
  kEverywhere,  // Gauss-Jordan: the inverse
};

// Rows are aligned for float4.
using Tile = float[kSide][kSide + 4];

// In shared memory: the tiles of 16 x 16 in the row and the column of a pivot tile, and the inverse of the pivot tile.
template <int kR>
struct PivotTiles {
  Tile inverse;  // of the unit lower factor with kBelow
  Tile row[RegisterMatrix<kR>::kOwn];
  Tile column[RegisterMatrix<kR>::kOwn];
  float pivots[kR];
};

// Eliminates the pivots of one tile, in the registers of one warp: lanes x and 16 + x have the upper and the lower
// half of column x.
template <Eliminate kWhere>
__device__ void eliminate_tile(const Tile& from, Tile& to, float* pivots) {
  constexpr uint32_t kAll = 0xffffffff;
  constexpr int kRows = kSide / 2;
  const int x = static_cast<int>(threadIdx.x) % kSide;
  const int half = static_cast<int>(threadIdx.x) - x;
  const int top = half / kSide * kRows;
  float a[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) a[i] = from[top + i][x];
#pragma unroll
  for (int k = 0; k < kSide; ++k) {
    const int lanes = k / kRows * kSide;
    const float inverse = __frcp_rn(__shfl_sync(kAll, a[k % kRows], lanes + k));
    float pivot_row = __shfl_sync(kAll, a[k % kRows], lanes + x);
    if (kWhere == Eliminate::kEverywhere) pivot_row = x == k ? inverse : pivot_row * inverse;
    if (kWhere == Eliminate::kBelow && x == k) pivot_row = 1;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      float factor = __shfl_sync(kAll, a[i], half + k);
      if (kWhere == Eliminate::kBelow) factor *= inverse;
      const float eliminated = (x == k ? 0 : a[i]) - factor * pivot_row;
      if (kWhere == Eliminate::kEverywhere) a[i] = top + i == k ? pivot_row : eliminated;
      if (kWhere == Eliminate::kBelow && top + i > k) a[i] = eliminated;
    }
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int y = top + i;
    if (kWhere == Eliminate::kEverywhere) {
      to[y][x] = a[i];
    } else {
      to[y][x] = x < y ? a[i] : x == y ? 1.0F : 0.0F;
      if (x == y) pivots[y] = a[i];
    }
  }
}

// Eliminates the pivots of a symmetric matrix, 16 at a time, so that threads wait for each other five times per 16
// pivots.
template <Eliminate kWhere, int kR>
__device__ void eliminate(RegisterMatrix<kR>& a, PivotTiles<kR>& shared) {
  constexpr int kOwn = RegisterMatrix<kR>::kOwn;
  constexpr bool kBelow = kWhere == Eliminate::kBelow;
  const int y = static_cast<int>(threadIdx.x) / kSide;
  const int x = static_cast<int>(threadIdx.x) % kSide;
#pragma unroll 1
  for (int p = 0; p < kOwn; ++p) {
#pragma unroll
    for (int u = 0; u < kOwn; ++u) {
#pragma unroll
      for (int w = 0; w < kOwn; ++w) {
        if (u == p) shared.row[w][y][x] = a.v[u][w];
        if (!kBelow && w == p) shared.column[u][y][x] = a.v[u][w];
      }
    }
    __syncthreads();
    if (threadIdx.x < 32) eliminate_tile<kWhere>(shared.row[p], shared.inverse, shared.pivots + p * kSide);
    __syncthreads();
    float row[kOwn] = {};
#pragma unroll 4
    for (int k = 0; k < kSide; ++k) {
      const float factor = shared.inverse[y][k];
#pragma unroll
      for (int w = 0; w < kOwn; ++w) row[w] += factor * shared.row[w][k][x];
    }
    __syncthreads();  // all threads have read the row as it was
#pragma unroll
    for (int w = 0; w < kOwn; ++w) {
      if (w == p) row[w] = shared.inverse[y][x];
      shared.row[w][y][x] = row[w];
      // What is left of the matrix is symmetric, so its column follows from its row.
      if (kBelow) shared.column[w][x][y] = row[w] * __frcp_rn(shared.pivots[p * kSide + y]);
    }
    __syncthreads();
#pragma unroll
    for (int u = 0; u < kOwn; ++u) {
#pragma unroll
      for (int w = 0; w < kOwn; ++w) {
        if (w == p && (!kBelow || u > p)) a.v[u][w] = 0;
      }
    }
#pragma unroll 1
    for (int k = 0; k < kSide; k += 4) {
      float4 column[kOwn];
#pragma unroll
      for (int u = 0; u < kOwn; ++u) column[u] = *reinterpret_cast<const float4*>(&shared.column[u][y][k]);
#pragma unroll
      for (int w = 0; w < kOwn; ++w) {
        const float own[4] = {shared.row[w][k][x], shared.row[w][k + 1][x], shared.row[w][k + 2][x],
                              shared.row[w][k + 3][x]};
#pragma unroll
        for (int u = 0; u < kOwn; ++u) {
          if (kBelow && u <= p) continue;
          a.v[u][w] -= column[u].x * own[0] + column[u].y * own[1] + column[u].z * own[2] + column[u].w * own[3];
        }
      }
    }
#pragma unroll
    for (int u = 0; u < kOwn; ++u) {
#pragma unroll
      for (int w = 0; w < kOwn; ++w) {
        if (u == p) a.v[u][w] = row[w];
      }
    }
    __syncthreads();  // all threads have read the row and the column
  }
}

// A Gram matrix of which the lower triangle is in memory, times `factor`.
template <int kR>
struct LowerTriangle {
  const float* own;
  double factor;

  __device__ LowerTriangle(const GramParts& gram, double by)
      : own(gram.sums + static_cast<int64_t>(blockIdx.y) * gram.parts * kR * kR), factor(by) {}

  __device__ double at(int i, int j) const { return factor * static_cast<double>(own[max(i, j) * kR + min(i, j)]); }
};

// What the ridge adds to the diagonal, and the trace with it.
struct Ridge {
  double ridge;
  double trace;
};
template <int kR>
__device__ Ridge find_ridge(const LowerTriangle<kR>& gram) {
  const int i = static_cast<int>(threadIdx.x);
  const double trace = block_sum<kThreads>(i < kR ? gram.at(i, i) : 0.0);
  if (trace == 0) return {1, 0};
  const double ridge = kGramRidge * trace;
  return {ridge, trace + kR * ridge};
}

template <int kR>
__global__ void __launch_bounds__(kThreads) invert_cholesky_kernel(const InverseCholesky call) {
  __shared__ alignas(16) PivotTiles<kR> shared;
  const LowerTriangle<kR> gram(call.gram, 1);
  const double ridge = find_ridge(gram).ridge;
  RegisterMatrix<kR> a;
  a.each([&](int i, int j, float& element) { element = static_cast<float>(gram.at(i, j) + (i == j ? ridge : 0.0)); });
  eliminate<Eliminate::kBelow>(a, shared);
  float* const out = call.inverse + static_cast<int64_t>(blockIdx.y) * kSmallMatrices * kR * kR;
  a.each([&](int i, int j, float& element) {
    const float value = j > i ? 0.0F : element / sqrtf(shared.pivots[i]);
    out[i * kR + j] = call.scale * value;
  });
}

// The sum of the elementwise product with a Gram matrix.
template <int kR>
__device__ double trace_of_product(const LowerTriangle<kR>& gram, double ridge, RegisterMatrix<kR>& a) {
  double sum = 0;
  a.each([&](int i, int j, float& element) {
    sum += static_cast<double>(element) * (gram.at(i, j) + (i == j ? ridge : 0.0));
  });
  return block_sum<kThreads>(sum);
}

__constant__ const double kPoleShifts[kPoles] = {kInverseRootPoles[0].shift, kInverseRootPoles[1].shift,
                                                 kInverseRootPoles[2].shift};
__constant__ const double kPoleWeights[kPoles] = {kInverseRootPoles[0].weight, kInverseRootPoles[1].weight,
                                                  kInverseRootPoles[2].weight};

// Per matrix: block 0 inverts N; block 1 inverts T / d + N and stores only its trace; the others have a pole each.
template <int kR>
__global__ void __launch_bounds__(kThreads, 2) invert_poles_kernel(const PoleInverses call) {
  __shared__ alignas(16) PivotTiles<kR> shared;
  constexpr double kScale = 1.0 / (static_cast<double>(kBasisScale) * static_cast<double>(kBasisScale));
  const LowerTriangle<kR> n(call.n, kScale);
  const LowerTriangle<kR> t(call.t, kScale);
  const Ridge n_ridge = find_ridge(n);
  const Ridge t_ridge = find_ridge(t);
  const double d = kCapFloor * t_ridge.trace;
  const int which = static_cast<int>(blockIdx.x);
  const double n_weight = which < 2 ? 1 : 1 + kPoleShifts[which - 2];
  const double t_weight = which > 0 && d != 0 ? 1 / d : 0;
  RegisterMatrix<kR> a;
  a.each([&](int i, int j, float& element) {
    const double diagonal = i == j ? t_weight * t_ridge.ridge + n_weight * n_ridge.ridge : 0.0;
    element = static_cast<float>(t_weight * t.at(i, j) + n_weight * n.at(i, j) + diagonal);
  });
  eliminate<Eliminate::kEverywhere>(a, shared);
  const int64_t matrix = blockIdx.y;
  if (which != 1) {
    float* const out = call.small + (matrix * kSmallMatrices + max(which - 1, 0)) * kR * kR;
    a.each([&](int i, int j, float& element) { out[i * kR + j] = element; });
  }
  if (which > 1) return;
  CapTraces& traces = call.traces[matrix];
  if (which == 0) {
    const double found = d == 0 ? d : trace_of_product(t, t_ridge.ridge, a);
    if (threadIdx.x == 0) traces.found = found;
  } else {
    const double within = trace_of_product(n, n_ridge.ridge, a);
    if (threadIdx.x == 0) {
      traces.within = within;
      traces.d = d;
    }
  }
}

// From an estimate of the norm of X after the cap, as a share of the norm before. For n > r it is off by no more than
// the inverse root, 3.5 %, and rounding.
template <Form kForm>
__device__ void write_scalars(const CapScalars& call, double c) {
  const int64_t matrix = blockIdx.y;
  const CapTraces& traces = call.traces[matrix];
  const double safety = call.settings->safety;
  const double stays = max(1 / (safety * safety) - traces.found, 0.0);
  const double norm = sqrt(stays + c * c * traces.d * (call.r - traces.within));
  FirstScalars& first = call.first[matrix];
  const double f = static_cast<double>(first.product.alpha);
  const double power = norm > 0 ? ldexp(1.0, norm_exponent(kForm) - ilogb(norm)) : 1;
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

}  // namespace

void invert_cholesky(const InverseCholesky& call, LaunchQueue& queue) {
  queue.launch("sketch cholesky",
               {call.r, call.batch, call.gram.parts, address(call.gram.sums), static_cast<int64_t>(call.scale),
                address(call.inverse)},
               [&](cudaStream_t stream) {
                 with_sketch(call.r, [&]<int kR>(Value<kR>) {
                   invert_cholesky_kernel<kR><<<grid_of(1, call.batch), kThreads, 0, stream>>>(call);
                 });
               });
}

void invert_poles(const PoleInverses& call, LaunchQueue& queue) {
  queue.launch("sketch inverses",
               {call.r, call.batch, call.n.parts, call.t.parts, address(call.n.sums), address(call.t.sums),
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
