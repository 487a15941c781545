#include "kernels/cuda/newton_schulz/normuon.h"
#include "kernels/cuda/newton_schulz/vector8.cuh"

namespace muster::kernels::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kPart = static_cast<int>(LineSums::kPart);
constexpr int kPartLanes = kPart / Vector8::kSize;  // lanes per part

// One warp per row; each half of the warp sums one part at a time.
template <typename T>
__global__ void sum_rows(const Matrices o, float* squares) {
  const auto rows = static_cast<int>(o.rows);
  const auto columns = static_cast<int>(o.columns);
  const int row = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32;
  if (row >= rows) return;
  const T* const line = static_cast<const T*>(o.data) + blockIdx.y * o.stride + row * o.pitch;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int parts = (columns + kPart - 1) / kPart;
#pragma unroll 4
  for (int part = lane / kPartLanes; part < (parts + 1) / 2 * 2; part += 32 / kPartLanes) {
    const int first = part * kPart + lane % kPartLanes * Vector8::kSize;
    float sum = 0;
    if (first < columns) {
      const Vector8 vector = load_aligned(line + first);
#pragma unroll
      for (int i = 0; i < Vector8::kSize; ++i) sum += first + i < columns ? vector.v[i] * vector.v[i] : 0.0F;
    }
    for (int offset = kPartLanes / 2; offset > 0; offset /= 2)
      sum += __shfl_down_sync(0xffffffff, sum, offset, kPartLanes);
    if (lane % kPartLanes == 0 && part < parts) {
      squares[(static_cast<int64_t>(blockIdx.y) * parts + part) * rows + row] = sum;
    }
  }
}

// One thread block per part of as many columns as one warp loads at a time; its warp w adds rows w, w + kWarps, ...
template <typename T>
__global__ void sum_columns(const Matrices o, float* squares) {
  const auto rows = static_cast<int>(o.rows);
  const auto columns = static_cast<int>(o.columns);
  constexpr int kColumns = 32 * Vector8::kSize;
  __shared__ float partial[kWarps][kColumns];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int own = static_cast<int>(threadIdx.x) % 32 * Vector8::kSize;
  const int first = static_cast<int>(blockIdx.x) * kColumns;
  const int begin = static_cast<int>(blockIdx.y) * kPart;
  Vector8 sum{};
  if (first + own < columns) {
    const T* const from = static_cast<const T*>(o.data) + blockIdx.z * o.stride + first + own;
#pragma unroll 4
    for (int row = begin + warp; row < min(rows, begin + kPart); row += kWarps) {
      const Vector8 vector = load_aligned(from + row * o.pitch);
#pragma unroll
      for (int i = 0; i < Vector8::kSize; ++i) sum.v[i] += vector.v[i] * vector.v[i];
    }
  }
#pragma unroll
  for (int i = 0; i < Vector8::kSize; ++i) partial[warp][own + i] = sum.v[i];
  __syncthreads();
  const int column = static_cast<int>(threadIdx.x);
  if (first + column >= columns) return;
  float total = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) total += partial[w][column];
  squares[(static_cast<int64_t>(blockIdx.z) * gridDim.y + blockIdx.y) * columns + first + column] = total;
}

// One thread per line. As in cpu/normuon.cpp, variances are f32 and everything else is double.
__global__ void advance_variances_kernel(const NorMuonBuffers buffers, int lines, int parts, double length) {
  const int64_t m = blockIdx.y;
  const UpdateMatrix matrix = buffers.matrices[m];
  const NorMuonOptions options = *buffers.options;
  const bool active = matrix.active == nullptr || *matrix.active != 0;
  const int line = static_cast<int>(blockIdx.x * LineSums::kNormLines + threadIdx.x);
  SquaredNorms norms{};
  if (line < lines) {
    float inverse = 0;
    if (active) {
      double square = 0;
      for (int p = 0; p < parts; ++p) square += static_cast<double>(buffers.squares[(m * parts + p) * lines + line]);
      const auto old = static_cast<double>(matrix.variance[line]);
      const auto variance = static_cast<float>(old + (square / length - old) * (1 - options.beta2));
      matrix.variance[line] = variance;
      const double divisor = sqrt(static_cast<double>(variance)) + options.eps;
      inverse = static_cast<float>(1 / divisor);
      norms = {square, square / (divisor * divisor)};
    }
    buffers.inverses[m * lines + line] = inverse;
  }
  const double before = block_sum<LineSums::kNormLines>(norms.before);
  const double after = block_sum<LineSums::kNormLines>(norms.after);
  if (threadIdx.x == 0) buffers.norms[m * gridDim.x + blockIdx.x] = {before, after};
}

}  // namespace

void sum_lines(Half type, const Matrices& o, const LineSums& sums, float* squares, LaunchQueue& queue) {
  queue.launch("line sums",
               {static_cast<int64_t>(type), static_cast<int64_t>(sums.axis), o.rows, o.columns, o.pitch, o.stride,
                address(o.data), sums.batch, address(squares)},
               [&](cudaStream_t stream) {
                 const auto batch = static_cast<unsigned>(sums.batch);
                 with_half(type, [&]<typename T>(Type<T>) {
                   if (sums.axis == LineAxis::kRows) {
                     const dim3 grid(static_cast<unsigned>((o.rows + kWarps - 1) / kWarps), batch);
                     sum_rows<T><<<grid, kThreads, 0, stream>>>(o, squares);
                   } else {
                     const dim3 grid(static_cast<unsigned>((o.columns + kThreads - 1) / kThreads),
                                     static_cast<unsigned>(sums.parts()), batch);
                     sum_columns<T><<<grid, kThreads, 0, stream>>>(o, squares);
                   }
                 });
               });
}

void advance_variances(const LineSums& sums, const NorMuonBuffers& buffers, LaunchQueue& queue) {
  queue.launch("variances",
               {sums.batch, sums.lines(), sums.length(), address(buffers.matrices), address(buffers.options),
                address(buffers.squares), address(buffers.inverses), address(buffers.norms)},
               [&](cudaStream_t stream) {
                 const dim3 grid(static_cast<unsigned>(sums.norms()), static_cast<unsigned>(sums.batch));
                 advance_variances_kernel<<<grid, static_cast<unsigned>(LineSums::kNormLines), 0, stream>>>(
                     buffers, static_cast<int>(sums.lines()), static_cast<int>(sums.parts()),
                     static_cast<double>(sums.length()));
               });
}

}  // namespace muster::kernels::cuda
