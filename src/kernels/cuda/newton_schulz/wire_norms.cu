
#include "kernels/cuda/newton_schulz/vector8.cuh"
#include "kernels/cuda/newton_schulz/wire_batch.h"

namespace muster::kernels::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int64_t kSlab = 8 * kThreads * Vector8::kSize;  // elements per partial sum

// The sum of squares of one slab of one matrix.
template <typename In>
__global__ void sum_slabs(const UpdateMatrix* matrices, int64_t elements, double* sums) {
  const auto* const x = static_cast<const In*>(matrices[blockIdx.y].matrix);
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kSlab + threadIdx.x * Vector8::kSize;
  double sum = 0;
  const auto add = [&](const Vector8& vector) {
#pragma unroll
    for (int i = 0; i < Vector8::kSize; ++i) sum += static_cast<double>(vector.v[i]) * static_cast<double>(vector.v[i]);
  };
  constexpr int64_t kStride = kThreads * Vector8::kSize;
  if (aligned_to_16(x) && static_cast<int64_t>(blockIdx.x + 1) * kSlab <= elements) {
#pragma unroll
    for (int k = 0; k < kSlab / kStride; ++k) add(load_aligned(x + begin + k * kStride));
  } else {
    for (int k = 0; k < kSlab / kStride; ++k) {
      const int64_t at = begin + k * kStride;
      add(load_vector8(x + at, elements - at));
    }
  }
  sum = block_sum<kThreads>(sum);
  if (threadIdx.x == 0) sums[static_cast<int64_t>(blockIdx.y) * gridDim.x + blockIdx.x] = sum;
}

// The power of two that X is multiplied with. For fp16 it brings the norm to between 256 and 512, where elements from a
// bf16 wire are exact down to 2^-25 of the norm. For bf16 it brings the norm near 1, but only if squares of X, or of
// much smaller elements, might leave the range of f32.
template <Form kForm>
__device__ float power_for(double norm) {
  constexpr int kFar = 32;
  constexpr int kMost = 126;
  if (!isfinite(norm) || norm == 0) return 1;
  const int exponent = norm_exponent(kForm) - ilogb(norm);
  if (kForm == Form::kStandard && exponent >= -kFar && exponent <= kFar) return 1;
  return ldexpf(1, max(-kMost, min(kMost, exponent)));
}

// One thread block per matrix: its power of two, and the first scalars for X times that power. If the iterations read X
// from the wire, this multiplies it with the power there: that is so rare that one thread block is enough.
template <Form kForm>
__global__ void find_norms_kernel(const NormBuffers buffers, int slabs, const UpdateMatrix* x_matrices, int vectors) {
  double sum = 0;
  for (int s = static_cast<int>(threadIdx.x); s < slabs; s += kThreads) {
    sum += buffers.sums[static_cast<int64_t>(blockIdx.x) * slabs + s];
  }
  sum = block_sum<kThreads>(sum);
  const double norm = sqrt(sum);
  const float power = power_for<kForm>(norm);
  double f = 1 / (buffers.settings->safety * norm * static_cast<double>(power));
  if (norm == 0) f = 0;
  if (isinf(norm)) f = nan("");  // with 0, cuBLAS would not read X
  const auto once = static_cast<float>(f);
  if (threadIdx.x == 0) {
    buffers.factors[blockIdx.x] = power;
    const Coefficients::Step& first = buffers.settings->first;
    const auto a = static_cast<float>(first.a);
    const auto b = static_cast<float>(first.b);
    const auto c = static_cast<float>(first.c);
    buffers.scalars[blockIdx.x] = {{static_cast<float>(f * f), 0}, {c, b}, {1, a}, {once, once * a}};
  }
  if (x_matrices == nullptr || power == 1) return;
  auto* const x = static_cast<__nv_bfloat16*>(x_matrices[blockIdx.x].matrix);
  for (int64_t i = threadIdx.x; i < vectors; i += kThreads) {
    Vector8 values = load_aligned(x + i * Vector8::kSize);
#pragma unroll
    for (int k = 0; k < Vector8::kSize; ++k) values.v[k] *= power;
    store_aligned(x + i * Vector8::kSize, values);
  }
}

}  // namespace

int64_t norm_sums(MatrixShape shape) { return (shape.rows * shape.columns + kSlab - 1) / kSlab; }

void find_norms(const WireBatch& batch, const NormBuffers& buffers, LaunchQueue& queue) {
  const int64_t elements = batch.shape.rows * batch.shape.columns;
  const int64_t slabs = norm_sums(batch.shape);
  const auto count = static_cast<unsigned>(batch.count);
  queue.launch("squares", {batch.kind(), batch.count, elements, address(batch.matrices), address(buffers.sums)},
               [&](cudaStream_t stream) {
                 with_wire(batch.wire, [&]<typename In>(Type<In>) {
                   const dim3 grid(static_cast<unsigned>(slabs), count);
                   sum_slabs<In><<<grid, kThreads, 0, stream>>>(batch.matrices, elements, buffers.sums);
                 });
               });
  const int64_t vectors = batch.is_x ? elements / Vector8::kSize : 0;
  queue.launch("norms",
               {batch.kind(), batch.count, slabs, address(buffers.sums), address(buffers.settings),
                address(buffers.factors), address(buffers.scalars), vectors},
               [&](cudaStream_t stream) {
                 const auto kernel =
                     batch.form == Form::kGram ? find_norms_kernel<Form::kGram> : find_norms_kernel<Form::kStandard>;
                 kernel<<<count, kThreads, 0, stream>>>(buffers, static_cast<int>(slabs),
                                                        batch.is_x ? batch.matrices : nullptr,
                                                        static_cast<int>(vectors));
               });
}

}  // namespace muster::kernels::cuda
