// The loop of elementwise kernels over a list of strided blocks: each thread block works on one chunk, and each thread
// loads a few consecutive elements several times over before it uses the first of them.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/cpu/elementwise_values.h"
#include "kernels/cuda/runtime/launch_queue.h"
#include "kernels/kernel_calls.h"
#include "kernels/weight_form_dispatch.h"
#include "muster/error.h"

namespace muster::kernels::cuda {

constexpr int kThreads = 256;
constexpr int kChunk = 4096;  // elements per chunk

// Part of a block, from element (row, column) on.
struct Chunk {
  int64_t row;
  int64_t column;
  int rows;
  int columns;
};

// How a block is cut into chunks of at most kElements: between rows, and rows longer than a chunk along their length.
template <int kElements>
struct Cut {
  __host__ __device__ Cut(int64_t block_rows, int64_t block_columns)
      : rows(block_rows),
        columns(block_columns),
        across((block_columns + kElements - 1) / kElements),
        height(across == 1 ? kElements / static_cast<int>(block_columns) : 1) {}
  int64_t count() const { return across * ((rows + height - 1) / height); }
  __device__ Chunk chunk(uint32_t i) const {
    const uint32_t line = i / static_cast<uint32_t>(across);
    const int64_t row = static_cast<int64_t>(line) * height;
    const int64_t column = static_cast<int64_t>(i - line * static_cast<uint32_t>(across)) * kElements;
    return {row, column, static_cast<int>(min(static_cast<int64_t>(height), rows - row)),
            static_cast<int>(min(static_cast<int64_t>(kElements), columns - column))};
  }

  int64_t rows;
  int64_t columns;
  int64_t across;
  int height;
};

template <int kElements, typename Block>
__host__ __device__ Cut<kElements> cut_of(const Block& block) {
  if constexpr (requires { block.rows; }) {
    return {block.rows, block.columns};
  } else {
    return {1, block.count};
  }
}

// The argument of a kernel. It points into the argument table.
template <typename O, typename B, int kElements = kChunk>
struct Call {
  using Options = O;
  using Block = B;

  const Options* options;
  const Block* blocks;
  const int64_t* ends;  // chunks of all blocks up to and with this one
  int count;

  struct Part {
    const Block& block;
    Chunk chunk;
  };
  // The chunk of this thread block: its block's index is the number of blocks that end before the chunk. All threads
  // must call this.
  __device__ Part part() const {
    const auto number = static_cast<int64_t>(blockIdx.x);
    int own = 0;
    for (int first = 0;; first += static_cast<int>(blockDim.x)) {
      const int i = first + static_cast<int>(threadIdx.x);
      const int before = __syncthreads_count(i < count && ends[i] <= number ? 1 : 0);
      own += before;
      if (before < static_cast<int>(blockDim.x)) break;
    }
    const int64_t begin = own == 0 ? 0 : ends[own - 1];
    return {blocks[own], cut_of<kElements>(blocks[own]).chunk(static_cast<uint32_t>(number - begin))};
  }
};

// True if rows follow each other without gaps in all operands, so that the block can be flattened into one row.
inline bool dense(const MomentumBlock& b) {
  return b.update_stride == b.columns && b.momentum_stride == b.columns &&
         b.grad_stride == b.columns;  // even without a gradient, which must not change how the block is cut
}
inline bool dense(const ApplyBlock& b) {
  return b.update_stride == b.columns && b.weight.stride == b.columns && b.weight.row_index_stride == b.columns;
}
inline bool dense(const ChangeBlock& b) { return b.weight.stride == b.columns; }
inline bool dense(const ValueBlock& b) { return b.stride == b.columns; }
template <typename To>
bool dense(const TransferBlock<To>& b) {
  return b.to_stride == b.columns && b.from_stride == b.columns;
}

template <typename Block>
Block flattened(Block block) {
  if constexpr (requires { block.rows; }) {
    if (block.rows > 1 && dense(block)) {
      block.columns *= block.rows;
      block.rows = 1;
    }
  }
  return block;
}

struct NoOptions {};

// Threads per block of a kernel with these options: Options::kBlockThreads where they say so.
template <typename Options>
constexpr int block_threads() {
  if constexpr (requires { Options::kBlockThreads; }) {
    return Options::kBlockThreads;
  } else {
    return kThreads;
  }
}

template <typename Options, typename Block, int kElements>
void enqueue(const char* what, void (*kernel)(Call<Options, Block, kElements>), const Options& options,
             std::type_identity_t<std::span<const Block>> blocks, LaunchQueue& queue) {
  static_assert(std::is_trivially_copyable_v<Options> && std::is_trivially_copyable_v<Block>);
  static_assert(sizeof(Block) % sizeof(int64_t) == 0);
  constexpr size_t kBlocksAt = (sizeof(Options) + 15) / 16 * 16;
  const size_t ends_at = kBlocksAt + blocks.size_bytes();
  std::vector<std::byte> table(ends_at + blocks.size() * sizeof(int64_t));
  std::memcpy(table.data(), &options, sizeof(Options));
  int64_t end = 0;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const Block block = flattened(blocks[i]);
    end += cut_of<kElements>(block).count();
    std::memcpy(table.data() + kBlocksAt + i * sizeof(Block), &block, sizeof(Block));
    std::memcpy(table.data() + ends_at + i * sizeof(int64_t), &end, sizeof(int64_t));
  }
  if (end == 0) return;
  const std::byte* const device = queue.upload(std::span<const std::byte>(table));
  const Call<Options, Block, kElements> call{
      reinterpret_cast<const Options*>(device), reinterpret_cast<const Block*>(device + kBlocksAt),
      reinterpret_cast<const int64_t*>(device + ends_at), static_cast<int>(blocks.size())};
  // The kernel's address stands for all types.
  queue.launch(what, {reinterpret_cast<int64_t>(kernel), call.count, end}, [&](cudaStream_t stream) {
    kernel<<<static_cast<unsigned>(end), static_cast<unsigned>(block_threads<Options>()), 0, stream>>>(call);
  });
}

// Calls f with the dtype as Type<T>.
template <typename F>
void with_dtype(Dtype dtype, const char* what, const F& f) {
  if (dtype == Dtype::kF16) throw InvalidArgument(std::string(what) + ": f16: expected f32 or bf16");
  if (dtype == Dtype::kBf16) {
    f(Type<cpu::Bf16>{});
  } else {
    f(Type<float>{});
  }
}

__device__ inline bool is_active(const int32_t* active) { return active == nullptr || *active != 0; }

// The type in which the device loads and stores kBytes at once.
template <int kBytes>
using Word = std::conditional_t<
    kBytes == 16, uint4,
    std::conditional_t<kBytes == 8, uint2, std::conditional_t<kBytes == 4, unsigned, unsigned short>>>;

// N consecutive elements in one access; their address must be aligned for it. read_once and write_once are for data
// that a step accesses once: they mark it to be evicted first from the L2 cache.
template <typename T, int N>
__device__ __forceinline__ void read(T (&to)[N], const T* from) {
  __builtin_assume(__isGlobal(from));
  const auto word = *reinterpret_cast<const Word<N * sizeof(T)>*>(from);
  memcpy(to, &word, sizeof(word));
}
template <typename T, int N>
__device__ __forceinline__ void read_once(T (&to)[N], const T* from) {
  const auto word = __ldcs(reinterpret_cast<const Word<N * sizeof(T)>*>(from));
  memcpy(to, &word, sizeof(word));
}
template <typename T, int N>
__device__ __forceinline__ void write(T* to, const T (&from)[N]) {
  Word<N * sizeof(T)> word;
  memcpy(&word, from, sizeof(word));
  __builtin_assume(__isGlobal(to));
  *reinterpret_cast<Word<N * sizeof(T)>*>(to) = word;
}
template <typename T, int N>
__device__ __forceinline__ void write_once(T* to, const T (&from)[N]) {
  Word<N * sizeof(T)> word;
  memcpy(&word, from, sizeof(word));
  __stcs(reinterpret_cast<Word<N * sizeof(T)>*>(to), word);
}

// A position within a chunk.
struct Place {
  int row;
  int column;
};

// A chunk of one of a block's operands. `data` may be null.
template <typename T>
struct Operand {
  T* data;
  int64_t stride;

  __device__ Operand(T* block, int64_t block_stride, const Chunk& chunk)
      : data(block == nullptr ? nullptr : block + chunk.row * block_stride + chunk.column), stride(block_stride) {}
  __device__ bool absent() const { return data == nullptr; }
  __device__ T* at(Place p) const { return data + p.row * stride + p.column; }
  // True if N elements can be accessed at once from every N-th column on.
  template <int N>
  __device__ bool aligned(const Chunk& chunk) const {
    return reinterpret_cast<uintptr_t>(data) % (N * sizeof(T)) == 0 && (chunk.rows == 1 || stride % N == 0);
  }
};

template <int N, typename... Operands>
__device__ bool all_aligned(const Chunk& chunk, const Operands&... operands) {
  return (operands.template aligned<N>(chunk) && ...);
}

// Goes over columns [first, end) of a chunk, N elements at a time: body.read() for kAhead such vectors, then
// body.write() for each.
template <int N, int kAhead, typename Body>
__device__ __forceinline__ void each_unit(Body& body, int rows, int first, int end) {
  const int across = (end - first) / N;
  const int units = rows * across;
  const auto threads = static_cast<int>(blockDim.x);
  const auto place = [&](int unit) -> Place {
    const int row = rows == 1 ? 0 : static_cast<int>(static_cast<unsigned>(unit) / static_cast<unsigned>(across));
    return {row, first + (unit - row * across) * N};
  };
  for (int start = static_cast<int>(threadIdx.x); start < units; start += kAhead * threads) {
    typename Body::template Values<N> values[kAhead];
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      const int unit = start + k * threads;
      if (unit < units) body.template read<N>(place(unit), values[k]);
    }
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      const int unit = start + k * threads;
      if (unit < units) body.template write<N>(place(unit), values[k]);
    }
  }
}

// Goes over a chunk: N elements at a time if the body's operands are aligned for it, and one by one for the rest.
template <int N, int kAhead, typename Body>
__device__ __forceinline__ void each(Body& body, const Chunk& chunk) {
  const int vectors = body.template aligned<N>(chunk) ? chunk.columns / N * N : 0;
  if (vectors > 0) each_unit<N, kAhead>(body, chunk.rows, 0, vectors);
  if (vectors < chunk.columns) each_unit<1, kAhead>(body, chunk.rows, vectors, chunk.columns);
}

}  // namespace muster::kernels::cuda
