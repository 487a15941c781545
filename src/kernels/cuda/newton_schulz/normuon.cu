#include "kernels/cuda/elementwise/vector8.cuh"
#include "kernels/cuda/newton_schulz/normuon.h"

namespace muster::kernels::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kPart = static_cast<int>(LineSums::kPart);
constexpr int kPartLanes = kPart / kOctet;  // with an octet each

// A warp a row; a part at a time for each half of it.
template <typename T>
__global__ void sum_rows(const T* o, int rows, int columns, int64_t pitch, int64_t stride, float* squares) {
  const int row = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32;
  if (row >= rows) return;
  const T* const line = o + blockIdx.y * stride + row * pitch;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int parts = (columns + kPart - 1) / kPart;
#pragma unroll 4
  for (int part = lane / kPartLanes; part < (parts + 1) / 2 * 2; part += 32 / kPartLanes) {
    const int first = part * kPart + lane % kPartLanes * kOctet;
    float sum = 0;
    if (first < columns) {
      const Octet octet = load_aligned(line + first);
#pragma unroll
      for (int i = 0; i < kOctet; ++i) sum += first + i < columns ? octet.v[i] * octet.v[i] : 0.0F;
    }
    for (int offset = kPartLanes / 2; offset > 0; offset /= 2)
      sum += __shfl_down_sync(0xffffffff, sum, offset, kPartLanes);
    if (lane % kPartLanes == 0 && part < parts) {
      squares[(static_cast<int64_t>(blockIdx.y) * parts + part) * rows + row] = sum;
    }
  }
}

// A block has a part of as many columns as a warp has octets for; warp w of it the rows w, w + kWarps, ...
template <typename T>
__global__ void sum_columns(const T* o, int rows, int columns, int64_t pitch, int64_t stride, float* squares) {
  constexpr int kColumns = 32 * kOctet;
  __shared__ float partial[kWarps][kColumns];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int own = static_cast<int>(threadIdx.x) % 32 * kOctet;
  const int first = static_cast<int>(blockIdx.x) * kColumns;
  const int begin = static_cast<int>(blockIdx.y) * kPart;
  Octet sum{};
  if (first + own < columns) {
    const T* const from = o + blockIdx.z * stride + first + own;
#pragma unroll 4
    for (int row = begin + warp; row < min(rows, begin + kPart); row += kWarps) {
      const Octet octet = load_aligned(from + row * pitch);
#pragma unroll
      for (int i = 0; i < kOctet; ++i) sum.v[i] += octet.v[i] * octet.v[i];
    }
  }
#pragma unroll
  for (int i = 0; i < kOctet; ++i) partial[warp][own + i] = sum.v[i];
  __syncthreads();
  const int column = static_cast<int>(threadIdx.x);
  if (first + column >= columns) return;
  float total = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) total += partial[w][column];
  squares[(static_cast<int64_t>(blockIdx.z) * gridDim.y + blockIdx.y) * columns + first + column] = total;
}

// A thread a line. As cpu/normuon.cpp: variances in f32, everything else in double.
__global__ void advance(const NorMuon normuon, int lines, int parts, double length) {
  const int64_t m = blockIdx.y;
  const UpdateMatrix matrix = normuon.matrices[m];
  const OrthogonalizeOptions::Lines options = *normuon.options;
  const bool active = matrix.active == nullptr || *matrix.active != 0;
  const int line = static_cast<int>(blockIdx.x * kNormLines + threadIdx.x);
  Norms norms{};
  if (line < lines) {
    float inverse = 0;
    if (active) {
      double square = 0;
      for (int p = 0; p < parts; ++p) square += static_cast<double>(normuon.squares[(m * parts + p) * lines + line]);
      const auto old = static_cast<double>(matrix.variance[line]);
      const auto variance = static_cast<float>(old + (square / length - old) * (1 - options.beta2));
      matrix.variance[line] = variance;
      const double divisor = sqrt(static_cast<double>(variance)) + options.eps;
      inverse = static_cast<float>(1 / divisor);
      norms = {square, square / (divisor * divisor)};
    }
    normuon.inverses[m * lines + line] = inverse;
  }
  const double before = block_sum<kNormLines>(norms.before);
  const double after = block_sum<kNormLines>(norms.after);
  if (threadIdx.x == 0) normuon.norms[m * gridDim.x + blockIdx.x] = {before, after};
}

template <typename T>
void sum_lines_of(const Matrices& o, int64_t batch, const LineSums& sums, float* squares, cudaStream_t stream) {
  const auto rows = static_cast<int>(o.rows);
  const auto columns = static_cast<int>(o.columns);
  const auto* const data = static_cast<const T*>(o.data);
  if (sums.axis == LineAxis::kRows) {
    const dim3 grid(static_cast<unsigned>((rows + kWarps - 1) / kWarps), static_cast<unsigned>(batch));
    sum_rows<<<grid, kThreads, 0, stream>>>(data, rows, columns, o.pitch, o.stride, squares);
  } else {
    const dim3 grid(static_cast<unsigned>((columns + kThreads - 1) / kThreads), static_cast<unsigned>(sums.parts()),
                    static_cast<unsigned>(batch));
    sum_columns<<<grid, kThreads, 0, stream>>>(data, rows, columns, o.pitch, o.stride, squares);
  }
}

}  // namespace

void sum_lines(Half type, const Matrices& o, int64_t batch, const LineSums& sums, float* squares, LaunchQueue& queue) {
  queue.launch("line sums",
               {static_cast<int64_t>(type), static_cast<int64_t>(sums.axis), o.rows, o.columns, o.pitch, o.stride,
                address(o.data), batch, address(squares)},
               [&](cudaStream_t stream) {
                 type == Half::kF16 ? sum_lines_of<__half>(o, batch, sums, squares, stream)
                                    : sum_lines_of<__nv_bfloat16>(o, batch, sums, squares, stream);
               });
}

void advance_variances(int64_t batch, const LineSums& sums, const NorMuon& normuon, LaunchQueue& queue) {
  queue.launch("variances",
               {batch, sums.lines(), sums.length(), address(normuon.matrices), address(normuon.options),
                address(normuon.squares), address(normuon.inverses), address(normuon.norms)},
               [&](cudaStream_t stream) {
                 const dim3 grid(static_cast<unsigned>(norms_of(sums)), static_cast<unsigned>(batch));
                 advance<<<grid, static_cast<unsigned>(kNormLines), 0, stream>>>(
                     normuon, static_cast<int>(sums.lines()), static_cast<int>(sums.parts()),
                     static_cast<double>(sums.length()));
               });
}

}  // namespace muster::kernels::cuda
