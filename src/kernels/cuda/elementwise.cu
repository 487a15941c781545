#include <vector>

#include "kernels/cpu/elementwise_values.h"
#include "kernels/cuda/elementwise.h"

namespace muster::kernels::cuda {

namespace {

using cpu::Bf16;
using cpu::decayed;
using cpu::load;
using cpu::store;
using cpu::toward;
using cpu::Weights;

constexpr int kThreads = 256;
constexpr int64_t kChunk = 4096;  // elements of one row that a thread block takes

// A call as the device reads it.
template <typename Options, typename Block>
struct Call {
  Options options;
  const Block* blocks;
  const int64_t* ends;  // chunks of all blocks up to this one
  int count;
};

struct Chunk {
  int block;
  int64_t row;
  int64_t first;  // column
  int64_t end;
};

// Which part of which block this thread block takes.
__device__ Chunk chunk_of(const int64_t* ends, int count, const auto& columns_of) {
  const auto number = static_cast<int64_t>(blockIdx.x);
  int low = 0;
  for (int high = count - 1; low < high;) {
    const int middle = (low + high) / 2;
    if (ends[middle] > number) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  const int64_t within = number - (low == 0 ? 0 : ends[low - 1]);
  const int64_t columns = columns_of(low);
  const int64_t across = (columns + kChunk - 1) / kChunk;
  const int64_t first = within % across * kChunk;
  return {low, within / across, first, min(columns, first + kChunk)};
}

template <typename G, typename M, typename U>
__global__ void __launch_bounds__(kThreads) momentum_kernel(const Call<MomentumOptions, MomentumBlock>* call) {
  const Chunk chunk = chunk_of(call->ends, call->count, [&](int b) { return call->blocks[b].columns; });
  const MomentumBlock& block = call->blocks[chunk.block];
  const MomentumOptions& options = call->options;
  const auto mu = static_cast<float>(options.mu);
  const auto rest = static_cast<float>(1 - options.mu);
  const auto scale = static_cast<float>(options.grad_scale);
  const bool ema = options.form == MomentumForm::kEma;
  const G* const __restrict__ grad = static_cast<const G*>(block.grad) + chunk.row * block.grad_stride;
  M* const __restrict__ momentum = static_cast<M*>(block.momentum) + chunk.row * block.momentum_stride;
  U* const __restrict__ update = static_cast<U*>(block.update) + chunk.row * block.update_stride;
#pragma unroll 4
  for (int64_t j = chunk.first + threadIdx.x; j < chunk.end; j += kThreads) {
    const float g = block.grad == nullptr ? 0.0F : load(grad[j]) * scale;
    const float before = load(momentum[j]);
    const float m = ema ? toward(before, g, rest) : mu * before + g;
    float u = m;
    if (options.nesterov) u = ema ? toward(g, m, mu) : mu * m + g;
    store(momentum[j], m);
    store(update[j], u);
  }
}

__device__ float decayed_by(Decay decay, float weight, float change, float keep) {
  return decay == Decay::kCautious ? decayed<Decay::kCautious>(weight, change, keep)
                                   : decayed<Decay::kPlain>(weight, change, keep);
}

template <typename U, WeightForm kForm>
__global__ void __launch_bounds__(kThreads) apply_kernel(const Call<ApplyOptions, ApplyBlock>* call) {
  const Chunk chunk = chunk_of(call->ends, call->count, [&](int b) { return call->blocks[b].columns; });
  const ApplyBlock& block = call->blocks[chunk.block];
  const auto step = static_cast<float>(block.step);
  const auto keep = static_cast<float>(1 - block.decay);
  const Decay decay = call->options.decay;
  const uint64_t key = cpu::rounding_key(call->options.rounding, block.weight.stream);
  const U* const __restrict__ update = static_cast<const U*>(block.update) + chunk.row * block.update_stride;
  const Weights<kForm> weights(
      block.weight, chunk.row * block.weight.stride, key,
      static_cast<uint64_t>(block.weight.first_index + chunk.row * block.weight.row_index_stride));
#pragma unroll 4
  for (int64_t j = chunk.first + threadIdx.x; j < chunk.end; j += kThreads) {
    weights.set(j, decayed_by(decay, weights.get(j), load(update[j]) * step, keep));
  }
}

template <typename G, WeightForm kForm>
__global__ void __launch_bounds__(kThreads) adamw_kernel(const Call<AdamWOptions, ElementRange>* call) {
  const Chunk chunk = chunk_of(call->ends, call->count, [&](int b) { return call->blocks[b].count; });
  const ElementRange& range = call->blocks[chunk.block];
  const AdamWOptions& options = call->options;
  const auto rest1 = static_cast<float>(1 - options.beta1);
  const auto rest2 = static_cast<float>(1 - options.beta2);
  const auto correct1 = static_cast<float>(cpu::bias_correction(options.beta1, options.step));
  const auto correct2 = static_cast<float>(cpu::bias_correction(options.beta2, options.step));
  const auto eps = static_cast<float>(options.eps);
  const auto scale = static_cast<float>(options.grad_scale);
  const auto lr = static_cast<float>(range.lr);
  const auto keep = static_cast<float>(1 - range.decay);
  const uint64_t key = cpu::rounding_key(options.rounding, range.weight.stream);
  const G* const __restrict__ grad = static_cast<const G*>(range.grad);
  const Weights<kForm> weights(range.weight, 0, key, static_cast<uint64_t>(range.weight.first_index));
  for (int64_t j = chunk.first + threadIdx.x; j < chunk.end; j += kThreads) {
    const float g = grad == nullptr ? 0.0F : load(grad[j]) * scale;
    const float m = toward(range.first[j], g, rest1);
    const float v = toward(range.second[j], g * g, rest2);
    range.first[j] = m;
    range.second[j] = v;
    const float change = lr * ((m * correct1) / (sqrtf(v * correct2) + eps));
    weights.set(j, decayed_by(options.decay, weights.get(j), change, keep));
  }
}

template <typename G, WeightForm kForm>
__global__ void __launch_bounds__(kThreads) lion_kernel(const Call<LionOptions, ElementRange>* call) {
  const Chunk chunk = chunk_of(call->ends, call->count, [&](int b) { return call->blocks[b].count; });
  const ElementRange& range = call->blocks[chunk.block];
  const LionOptions& options = call->options;
  const auto rest1 = static_cast<float>(1 - options.beta1);
  const auto rest2 = static_cast<float>(1 - options.beta2);
  const auto scale = static_cast<float>(options.grad_scale);
  const auto lr = static_cast<float>(range.lr);
  const auto keep = static_cast<float>(1 - range.decay);
  const uint64_t key = cpu::rounding_key(options.rounding, range.weight.stream);
  const G* const __restrict__ grad = static_cast<const G*>(range.grad);
  const Weights<kForm> weights(range.weight, 0, key, static_cast<uint64_t>(range.weight.first_index));
  for (int64_t j = chunk.first + threadIdx.x; j < chunk.end; j += kThreads) {
    const float g = grad == nullptr ? 0.0F : load(grad[j]) * scale;
    const float before = range.first[j];
    const float direction = toward(before, g, rest1);
    range.first[j] = toward(before, g, rest2);
    const float change = direction > 0 ? lr : direction < 0 ? -lr : 0.0F;
    weights.set(j, decayed_by(options.decay, weights.get(j), change, keep));
  }
}

// Rows that follow each other everywhere are one row.
MomentumBlock flattened(MomentumBlock block) {
  const bool dense = block.update_stride == block.columns && block.momentum_stride == block.columns &&
                     (block.grad == nullptr || block.grad_stride == block.columns);
  if (!dense) return block;
  block.columns *= block.rows;
  block.rows = 1;
  return block;
}
ApplyBlock flattened(ApplyBlock block) {
  const bool dense = block.update_stride == block.columns && block.weight.stride == block.columns &&
                     block.weight.row_index_stride == block.columns;
  if (!dense) return block;
  block.columns *= block.rows;
  block.rows = 1;
  return block;
}
ElementRange flattened(const ElementRange& range) { return range; }

int64_t chunks(int64_t rows, int64_t columns) { return rows * ((columns + kChunk - 1) / kChunk); }
int64_t chunks(const ElementRange& range) { return chunks(1, range.count); }
template <typename Block>
int64_t chunks(const Block& block) {
  return chunks(block.rows, block.columns);
}

// Fills the table and calls launch(call on the device, thread blocks).
template <typename Options, typename Block, typename Launch>
void enqueue(const char* what, const Options& options, std::span<const Block> blocks, Table& table, cudaStream_t stream,
             const Launch& launch) {
  std::vector<Block> kept;
  std::vector<int64_t> ends;
  int64_t total = 0;
  for (const Block& block : blocks) {
    const Block flat = flattened(block);
    const int64_t count = chunks(flat);
    if (count == 0) continue;
    kept.push_back(flat);
    ends.push_back(total += count);
  }
  if (kept.empty()) return;
  const Call<Options, Block> call{options, table.put(std::span<const Block>(kept), stream),
                                  table.put(std::span<const int64_t>(ends), stream), static_cast<int>(kept.size())};
  launch(table.put(std::span(&call, 1), stream), static_cast<unsigned>(total));
  check(cudaGetLastError(), what);
}

template <typename T>
struct Type {
  using type = T;
};
template <WeightForm kForm>
struct Form {};

template <typename F>
void with_dtype(Dtype dtype, const char* what, const F& f) {
  if (dtype == Dtype::kF16) throw InvalidArgument(std::string(what) + ": f16: expected f32 or bf16");
  if (dtype == Dtype::kBf16) {
    f(Type<Bf16>{});
  } else {
    f(Type<float>{});
  }
}
template <typename F>
void with_form(WeightForm form, const F& f) {
  switch (form) {
    case WeightForm::kF32:
      return f(Form<WeightForm::kF32>{});
    case WeightForm::kBf16:
      return f(Form<WeightForm::kBf16>{});
    case WeightForm::kBf16Master:
      return f(Form<WeightForm::kBf16Master>{});
    case WeightForm::kBf16Mantissa:
      return f(Form<WeightForm::kBf16Mantissa>{});
    case WeightForm::kBf16Stochastic:
      return f(Form<WeightForm::kBf16Stochastic>{});
  }
}

}  // namespace

void momentum_pack(const MomentumOptions& options, std::span<const MomentumBlock> blocks, Table& table,
                   cudaStream_t stream) {
  enqueue("momentum", options, blocks, table, stream, [&](const auto* call, unsigned grid) {
    with_dtype(options.grad, "gradient", [&]<typename G>(Type<G>) {
      with_dtype(options.momentum, "momentum", [&]<typename M>(Type<M>) {
        with_dtype(options.wire, "wire",
                   [&]<typename U>(Type<U>) { momentum_kernel<G, M, U><<<grid, kThreads, 0, stream>>>(call); });
      });
    });
  });
}

void apply(const ApplyOptions& options, std::span<const ApplyBlock> blocks, Table& table, cudaStream_t stream) {
  enqueue("apply", options, blocks, table, stream, [&](const auto* call, unsigned grid) {
    with_dtype(options.wire, "wire", [&]<typename U>(Type<U>) {
      with_form(options.form,
                [&]<WeightForm kForm>(Form<kForm>) { apply_kernel<U, kForm><<<grid, kThreads, 0, stream>>>(call); });
    });
  });
}

void adamw(const AdamWOptions& options, std::span<const ElementRange> ranges, Table& table, cudaStream_t stream) {
  enqueue("adamw", options, ranges, table, stream, [&](const auto* call, unsigned grid) {
    with_dtype(options.grad, "gradient", [&]<typename G>(Type<G>) {
      with_form(options.form,
                [&]<WeightForm kForm>(Form<kForm>) { adamw_kernel<G, kForm><<<grid, kThreads, 0, stream>>>(call); });
    });
  });
}

void lion(const LionOptions& options, std::span<const ElementRange> ranges, Table& table, cudaStream_t stream) {
  enqueue("lion", options, ranges, table, stream, [&](const auto* call, unsigned grid) {
    with_dtype(options.grad, "gradient", [&]<typename G>(Type<G>) {
      with_form(options.form,
                [&]<WeightForm kForm>(Form<kForm>) { lion_kernel<G, kForm><<<grid, kThreads, 0, stream>>>(call); });
    });
  });
}

}  // namespace muster::kernels::cuda
