#include "kernels/cuda/newton_schulz/vector8.cuh"
#include "kernels/cuda/newton_schulz/wire_batch.h"

namespace muster::kernels::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kUnrolled = 4;  // vectors that a thread has in flight
constexpr int kBlockVectors = kThreads * kUnrolled;

// A matrix on the wire, whose rows are cut into vectors. Rows of the iterates are padded to whole vectors.
struct VectorGrid {
  int columns;
  int across;  // vectors per row
  int count;   // vectors per matrix

  explicit VectorGrid(MatrixShape shape)
      : columns(static_cast<int>(shape.columns)),
        across(static_cast<int>(pitch_of(shape.columns) / Vector8::kSize)),
        count(static_cast<int>(shape.rows * across)) {}

  __device__ int row(int vector) const {
    return static_cast<int>(static_cast<unsigned>(vector) / static_cast<unsigned>(across));
  }
  __device__ int column(int vector, int row) const { return (vector - row * across) * Vector8::kSize; }
};

dim3 launch_grid(const WireBatch& batch, const VectorGrid& grid) {
  return {static_cast<unsigned>((grid.count + kBlockVectors - 1) / kBlockVectors), static_cast<unsigned>(batch.count)};
}

// The matrices times their factors, in T.
template <typename In, typename T>
__global__ void load_x_kernel(const UpdateMatrix* matrices, const VectorGrid grid, const float* factors, T* to,
                              int64_t stride) {
  const float factor = factors[blockIdx.y];
  const auto* const x = static_cast<const In*>(matrices[blockIdx.y].matrix);
  T* const out = to + blockIdx.y * stride;
  const int first = static_cast<int>(blockIdx.x) * kBlockVectors + static_cast<int>(threadIdx.x);
  const auto times = [&](Vector8& vector) {
#pragma unroll
    for (int i = 0; i < Vector8::kSize; ++i) vector.v[i] *= factor;
  };
  if (grid.columns % Vector8::kSize == 0 && aligned_to_16(x)) {
    Vector8 values[kUnrolled];
#pragma unroll
    for (int k = 0; k < kUnrolled; ++k) {
      const int64_t index = first + k * kThreads;
      if (index < grid.count) values[k] = load_aligned(x + index * Vector8::kSize);
    }
#pragma unroll
    for (int k = 0; k < kUnrolled; ++k) {
      const int64_t index = first + k * kThreads;
      times(values[k]);
      if (index < grid.count) store_aligned(out + index * Vector8::kSize, values[k]);
    }
    return;
  }
  for (int k = 0; k < kUnrolled; ++k) {
    const int index = first + k * kThreads;
    if (index >= grid.count) return;
    const int row = grid.row(index);
    const int column = grid.column(index, row);
    Vector8 values = load_vector8(x + static_cast<int64_t>(row) * grid.columns + column, grid.columns - column);
    times(values);
    store_aligned(out + static_cast<int64_t>(index) * Vector8::kSize, values);
  }
}

// Which factors NorMuon multiplies O with.
enum class Factors : uint8_t { kNone, kRows, kColumns };

// O times NorMuon's factors, rounded once. apply_orthogonalized.cu computes the same on the way to the weights.
template <typename T, typename Out, Factors kFactors>
__global__ void write_wire_kernel(const T* o, int64_t stride, const VectorGrid grid, const LineFactors factors,
                                  const UpdateMatrix* matrices) {
  const T* const from = o + blockIdx.y * stride;
  auto* const wire = static_cast<Out*>(matrices[blockIdx.y].matrix);
  const int first = static_cast<int>(blockIdx.x) * kBlockVectors + static_cast<int>(threadIdx.x);
  Vector8 values[kUnrolled];
#pragma unroll
  for (int k = 0; k < kUnrolled; ++k) {
    const int64_t index = first + k * kThreads;
    if (index < grid.count) values[k] = load_aligned(from + index * Vector8::kSize);
  }
  const bool whole = grid.columns % Vector8::kSize == 0;
  const float keep =
      kFactors == Factors::kNone
          ? 1
          : norm_factor(factors.norms + static_cast<int64_t>(blockIdx.y) * factors.norm_count, factors.norm_count);
  const float* const inverses = factors.inverses + static_cast<int64_t>(blockIdx.y) * factors.lines;
#pragma unroll
  for (int k = 0; k < kUnrolled; ++k) {
    const int index = first + k * kThreads;
    if (index >= grid.count) return;
    const int row = grid.row(index);
    const int column = grid.column(index, row);
    if constexpr (kFactors == Factors::kRows) {
      const float factor = keep * inverses[row];
#pragma unroll
      for (int i = 0; i < Vector8::kSize; ++i) values[k].v[i] *= factor;
    } else if constexpr (kFactors == Factors::kColumns) {
      const Vector8 inverse =
          whole ? load_aligned(inverses + column) : load_vector8(inverses + column, grid.columns - column);
#pragma unroll
      for (int i = 0; i < Vector8::kSize; ++i) values[k].v[i] *= keep * inverse.v[i];
    }
    store_vector8(wire + static_cast<int64_t>(row) * grid.columns + column, values[k], grid.columns - column);
  }
}

// Calls f with the factors' axis as a template argument.
template <typename F>
void with_factors(const Orthogonalized& orthogonalized, const F& f) {
  if (orthogonalized.factors.inverses == nullptr) return f(Value<Factors::kNone>{});
  orthogonalized.axis == LineAxis::kRows ? f(Value<Factors::kRows>{}) : f(Value<Factors::kColumns>{});
}

}  // namespace

void load_x(const WireBatch& batch, const float* factors, const Matrices& x, LaunchQueue& queue) {
  queue.launch("convert",
               {batch.kind(), batch.count, batch.shape.rows, batch.shape.columns, address(batch.matrices),
                address(factors), address(x.data), x.stride},
               [&](cudaStream_t stream) {
                 const VectorGrid grid(batch.shape);
                 with_half(half_of(batch.form), [&]<typename T>(Type<T>) {
                   with_wire(batch.wire, [&]<typename In>(Type<In>) {
                     load_x_kernel<In><<<launch_grid(batch, grid), kThreads, 0, stream>>>(
                         batch.matrices, grid, factors, static_cast<T*>(x.data), x.stride);
                   });
                 });
               });
}

void write_wire(const WireBatch& batch, const Orthogonalized& orthogonalized, LaunchQueue& queue) {
  const Matrices& o = orthogonalized.o;
  const LineFactors& factors = orthogonalized.factors;
  with_factors(orthogonalized, [&]<Factors kFactors>(Value<kFactors>) {
    queue.launch(
        "wire",
        {batch.kind(), batch.count, batch.shape.rows, batch.shape.columns, address(batch.matrices), address(o.data),
         o.stride, address(factors.inverses), address(factors.norms), static_cast<int64_t>(kFactors)},
        [&](cudaStream_t stream) {
          const VectorGrid grid(batch.shape);
          with_half(orthogonalized.type, [&]<typename T>(Type<T>) {
            with_wire(batch.wire, [&]<typename Out>(Type<Out>) {
              write_wire_kernel<T, Out, kFactors><<<launch_grid(batch, grid), kThreads, 0, stream>>>(
                  static_cast<const T*>(o.data), o.stride, grid, factors, batch.matrices);
            });
          });
        });
  });
}

}  // namespace muster::kernels::cuda
