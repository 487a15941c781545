#include "kernels/cuda/elementwise/block_loop.cuh"
#include "kernels/cuda/elementwise/elementwise.h"

namespace muster::kernels::cuda {

namespace {

constexpr int kAhead = 4;

template <typename T>
struct CopyBody {
  template <int N>
  struct Values {
    T values[N];
  };

  Operand<const T> from;
  Operand<T> to;

  __device__ CopyBody(const CopyBlock& block, const Chunk& chunk)
      : from(static_cast<const T*>(block.from), block.from_stride, chunk),
        to(static_cast<T*>(block.to), block.to_stride, chunk) {}

  template <int N>
  __device__ bool aligned(const Chunk& chunk) const {
    return (from.absent() || from.template aligned<N>(chunk)) && to.template aligned<N>(chunk);
  }
  template <int N>
  __device__ void read(Place p, Values<N>& v) const {
    v = {};
    if (!from.absent()) cuda::read(v.values, from.at(p));
  }
  template <int N>
  __device__ void write(Place p, Values<N>& v) const {
    cuda::write(to.at(p), v.values);
  }
};

template <typename T>
__global__ void __launch_bounds__(kThreads) copy_kernel(Call<NoOptions, CopyBlock> call) {
  const auto [block, chunk] = call.part();
  CopyBody<T> body(block, chunk);
  each<16 / sizeof(T), kAhead>(body, chunk);
}

template <typename T>
struct AddBody {
  template <int N>
  struct Values {
    T from[N];
    float to[N];
  };

  Operand<const T> from;
  Operand<float> to;

  __device__ AddBody(const AddBlock& block, const Chunk& chunk)
      : from(static_cast<const T*>(block.from), block.from_stride, chunk), to(block.to, block.to_stride, chunk) {}

  template <int N>
  __device__ bool aligned(const Chunk& chunk) const {
    return all_aligned<N>(chunk, from, to);
  }
  template <int N>
  __device__ void read(Place p, Values<N>& v) const {
    cuda::read(v.from, from.at(p));
    cuda::read(v.to, to.at(p));
  }
  template <int N>
  __device__ void write(Place p, Values<N>& v) const {
#pragma unroll
    for (int i = 0; i < N; ++i) v.to[i] += cpu::load(v.from[i]);
    cuda::write(to.at(p), v.to);
  }
};

template <typename T>
__global__ void __launch_bounds__(kThreads) add_kernel(Call<NoOptions, AddBlock> call) {
  const auto [block, chunk] = call.part();
  if (block.from == nullptr) return;
  AddBody<T> body(block, chunk);
  each<4, kAhead>(body, chunk);
}

struct DivideBody {
  template <int N>
  struct Values {
    float values[N];
  };

  Operand<float> data;
  float divisor;

  __device__ DivideBody(const DivideRange& range, const Chunk& chunk)
      : data(range.data, 0, chunk), divisor(range.divisor) {}

  template <int N>
  __device__ bool aligned(const Chunk& chunk) const {
    return all_aligned<N>(chunk, data);
  }
  template <int N>
  __device__ void read(Place p, Values<N>& v) const {
    cuda::read(v.values, data.at(p));
  }
  template <int N>
  __device__ void write(Place p, Values<N>& v) const {
#pragma unroll
    for (int i = 0; i < N; ++i) v.values[i] /= divisor;
    cuda::write(data.at(p), v.values);
  }
};

__global__ void __launch_bounds__(kThreads) divide_kernel(Call<NoOptions, DivideRange> call) {
  const auto [range, chunk] = call.part();
  DivideBody body(range, chunk);
  each<4, kAhead>(body, chunk);
}

}  // namespace

void copy(int64_t width, std::span<const CopyBlock> blocks, LaunchQueue& queue) {
  switch (width) {
    case 2:
      return enqueue("copy", copy_kernel<uint16_t>, NoOptions{}, blocks, queue);
    case 4:
      return enqueue("copy", copy_kernel<uint32_t>, NoOptions{}, blocks, queue);
    case 8:
      return enqueue("copy", copy_kernel<uint64_t>, NoOptions{}, blocks, queue);
    default:
      throw Internal("copy: elements of " + std::to_string(width) + " bytes");
  }
}

void add(Dtype dtype, std::span<const AddBlock> blocks, LaunchQueue& queue) {
  with_dtype(dtype, "values", [&]<typename T>(Type<T>) { enqueue("add", add_kernel<T>, NoOptions{}, blocks, queue); });
}

void divide(std::span<const DivideRange> ranges, LaunchQueue& queue) {
  enqueue("divide", divide_kernel, NoOptions{}, ranges, queue);
}

}  // namespace muster::kernels::cuda
