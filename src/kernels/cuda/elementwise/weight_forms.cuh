// Weights of every form, for elementwise kernels. Everything has internal linkage, as elementwise_values.h has.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <type_traits>

#include "kernels/cuda/elementwise/block_loop.cuh"

namespace muster::kernels::cuda {
namespace {

// Elements per access of a thread: 16 bytes of f32, so that a warp's accesses are contiguous in every operand.
constexpr int kVector = 4;
constexpr int kAhead = 2;

// A chunk of weights. cpu::Weights interprets the elements once a thread has them in registers.
template <WeightForm kForm>
struct WeightOperand {
  using Data = std::conditional_t<kForm == WeightForm::kF32, float, cpu::Bf16>;
  using Extra = std::conditional_t<kForm == WeightForm::kBf16Master, float, uint16_t>;
  static constexpr bool kHasExtra = kForm == WeightForm::kBf16Master || kForm == WeightForm::kBf16Mantissa;

  template <int N>
  struct Values {
    Data data[N];
    Extra extra[N];
  };

  Operand<Data> data;
  Operand<Extra> extra;
  uint64_t key;
  int64_t first_index;
  int64_t row_index_stride;

  __device__ WeightOperand(const WeightBlock& block, const Rounding& rounding, const Chunk& chunk)
      : data(static_cast<Data*>(block.data), block.stride, chunk),
        extra(static_cast<Extra*>(block.extra), block.stride, chunk),
        key(cpu::rounding_key(rounding, block.stream)),
        first_index(block.first_index + chunk.row * block.row_index_stride + chunk.column),
        row_index_stride(block.row_index_stride) {}

  // In the parameter.
  __device__ int64_t index(Place p) const { return first_index + p.row * row_index_stride + p.column; }
  template <int N>
  __device__ bool aligned(const Chunk& chunk) const {
    return data.template aligned<N>(chunk) && (!kHasExtra || extra.template aligned<N>(chunk));
  }
  template <int N>
  __device__ void read(Place p, Values<N>& v) const {
    read_once(v.data, data.at(p));
    if constexpr (kHasExtra) read_once(v.extra, extra.at(p));
  }
  // Calls f(i, weight i).
  template <int N, typename F>
  __device__ static void for_each(Values<N>& v, const F& f) {
    WeightBlock local;
    local.data = v.data;
    local.extra = v.extra;
    const cpu::Weights<kForm> weights(local, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < N; ++i) f(i, weights.get(i));
  }
  // Replaces weight i by f(i, weight i).
  template <int N, typename F>
  __device__ void write(Place p, Values<N>& v, const F& f) const {
    WeightBlock local;
    local.data = v.data;
    local.extra = v.extra;
    const cpu::Weights<kForm> weights(local, 0, key, static_cast<uint64_t>(index(p)));
#pragma unroll
    for (int i = 0; i < N; ++i) weights.set(i, f(i, weights.get(i)));
    write_once(data.at(p), v.data);
    if constexpr (kHasExtra) write_once(extra.at(p), v.extra);
  }
};

// The row factors of N elements, which follow each other in the parameter from number `index` on. Without kScaled none,
// at no cost: kernels that look for them need twice the registers.
template <int N, bool kScaled>
struct ElementFactors {
  __device__ ElementFactors(const RowFactors&, int64_t) {}
  __device__ float scaled(int, float w) const { return w; }
};
template <int N>
struct ElementFactors<N, true> {
  float values[N];

  __device__ ElementFactors(const RowFactors& rows, int64_t index) {
    const bool any = rows.factors != nullptr;
    int64_t row = any ? index / rows.row_length : 0;
    int64_t left = any ? (row + 1) * rows.row_length - index : N;
    float factor = any ? cpu::factor_of_row(rows, row) : 1.0F;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      values[i] = factor;
      if (--left > 0 || i + 1 == N || !any) continue;
      factor = cpu::factor_of_row(rows, ++row);
      left = rows.row_length;
    }
  }
  __device__ float scaled(int i, float w) const { return w * values[i]; }
};

// Calls f with whether any of the blocks has row factors.
template <typename Block, typename F>
void with_scaled(std::span<const Block> blocks, const F& f) {
  const bool any = std::ranges::any_of(blocks, [](const Block& b) { return b.row_factors.factors != nullptr; });
  any ? f(Value<true>{}) : f(Value<false>{});
}

template <typename Body, typename Options, typename Block, int kElements = kChunk>
__global__ void __launch_bounds__(kThreads) elementwise_kernel(Call<Options, Block, kElements> call) {
  const auto [block, chunk] = call.part();
  if (!is_active(block.active)) return;
  Body body(*call.options, block, chunk);
  each<kVector, kAhead>(body, chunk);
}

}  // namespace
}  // namespace muster::kernels::cuda
