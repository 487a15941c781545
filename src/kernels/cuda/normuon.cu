#include "kernels/cuda/normuon.h"
#include "kernels/cuda/octets.cuh"

namespace muster::kernels::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kPartRows = 128;             // whose squares make one part of a column's sum
constexpr int kPartColumns = 32 * kOctet;  // of a block: an octet a lane
constexpr int kFactorThreads = 1024;

// A warp a row.
template <typename T>
__global__ void sum_rows(const T* o, int rows, int columns, int64_t pitch, int64_t stride, float* squares) {
  const int row = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32;
  if (row >= rows) return;
  const T* const line = o + blockIdx.y * stride + row * pitch;
  float sum = 0;
#pragma unroll 4
  for (int j = static_cast<int>(threadIdx.x) % 32 * kOctet; j < columns; j += 32 * kOctet) {
    const Octet octet = load_aligned(line + j);
#pragma unroll
    for (int i = 0; i < kOctet; ++i) sum += j + i < columns ? octet.v[i] * octet.v[i] : 0.0F;
  }
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_down_sync(0xffffffff, sum, offset);
  if (threadIdx.x % 32 == 0) squares[static_cast<int64_t>(blockIdx.y) * rows + row] = sum;
}

// A block has kPartRows rows of kPartColumns columns; warp w of it the rows w, w + kWarps, ...
template <typename T>
__global__ void sum_columns(const T* o, int rows, int columns, int64_t pitch, int64_t stride, float* squares) {
  __shared__ float partial[kWarps][kPartColumns];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int own = static_cast<int>(threadIdx.x) % 32 * kOctet;
  const int first = static_cast<int>(blockIdx.x) * kPartColumns;
  const int begin = static_cast<int>(blockIdx.y) * kPartRows;
  Octet sum{};
  if (first + own < columns) {
    const T* const from = o + blockIdx.z * stride + first + own;
#pragma unroll 4
    for (int row = begin + warp; row < min(rows, begin + kPartRows); row += kWarps) {
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

// One block a matrix. As cpu/normuon.cpp: variances in f32, everything else in double.
__global__ void find_factors(NorMuon normuon, int lines, int parts, double length) {
  const PolishMatrix matrix = normuon.matrices[blockIdx.x];
  const PolishOptions::Lines options = *normuon.options;
  const float* const squares = normuon.squares + static_cast<int64_t>(blockIdx.x) * parts * lines;
  float* const factors = normuon.factors + static_cast<int64_t>(blockIdx.x) * lines;
  const bool active = matrix.active == nullptr || *matrix.active != 0;
  const auto divisor = [&](float variance) { return sqrt(static_cast<double>(variance)) + options.eps; };
  double before = 0;
  double after = 0;
  for (int i = static_cast<int>(threadIdx.x); active && i < lines; i += kFactorThreads) {
    double square = 0;
    for (int p = 0; p < parts; ++p) square += static_cast<double>(squares[static_cast<int64_t>(p) * lines + i]);
    const auto old = static_cast<double>(matrix.variance[i]);
    const auto variance = static_cast<float>(old + (square / length - old) * (1 - options.beta2));
    matrix.variance[i] = variance;
    before += square;
    after += square / (divisor(variance) * divisor(variance));
  }
  before = block_sum<kFactorThreads>(before);
  after = block_sum<kFactorThreads>(after);
  const double keep = after > 0 ? sqrt(before / after) : 0;
  for (int i = static_cast<int>(threadIdx.x); i < lines; i += kFactorThreads) {
    factors[i] = active ? static_cast<float>(keep / divisor(matrix.variance[i])) : 0.0F;
  }
}

template <typename T>
void sum_lines(const Matrices& o, int64_t batch, const LineSums& sums, float* squares, cudaStream_t stream) {
  const auto rows = static_cast<int>(o.rows);
  const auto columns = static_cast<int>(o.columns);
  const auto* const data = static_cast<const T*>(o.data);
  if (sums.axis == LineAxis::kRows) {
    const dim3 grid(static_cast<unsigned>((rows + kWarps - 1) / kWarps), static_cast<unsigned>(batch));
    sum_rows<<<grid, kThreads, 0, stream>>>(data, rows, columns, o.pitch, o.stride, squares);
  } else {
    const dim3 grid(static_cast<unsigned>((columns + kPartColumns - 1) / kPartColumns),
                    static_cast<unsigned>(sums.parts), static_cast<unsigned>(batch));
    sum_columns<<<grid, kThreads, 0, stream>>>(data, rows, columns, o.pitch, o.stride, squares);
  }
}

}  // namespace

LineSums::LineSums(LineAxis of, MatrixShape matrix)
    : axis(of), shape(matrix), parts(of == LineAxis::kRows ? 1 : (matrix.rows + kPartRows - 1) / kPartRows) {}

void find_normuon_factors(Half type, const Matrices& o, int64_t batch, const LineSums& sums, const NorMuon& normuon,
                          Queue& queue) {
  const auto address = [](const void* p) { return reinterpret_cast<int64_t>(p); };
  queue.launch("line sums",
               {static_cast<int64_t>(type), static_cast<int64_t>(sums.axis), o.rows, o.columns, o.pitch, o.stride,
                address(o.data), batch, address(normuon.squares)},
               [&](cudaStream_t stream) {
                 type == Half::kF16 ? sum_lines<__half>(o, batch, sums, normuon.squares, stream)
                                    : sum_lines<__nv_bfloat16>(o, batch, sums, normuon.squares, stream);
               });
  queue.launch("line factors", {batch, sums.lines(), sums.parts, address(normuon.squares), address(normuon.factors)},
               [&](cudaStream_t stream) {
                 find_factors<<<static_cast<unsigned>(batch), kFactorThreads, 0, stream>>>(
                     normuon, static_cast<int>(sums.lines()), static_cast<int>(sums.parts),
                     static_cast<double>(sums.length()));
               });
}

}  // namespace muster::kernels::cuda
