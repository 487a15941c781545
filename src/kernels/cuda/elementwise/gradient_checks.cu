#include "kernels/cuda/elementwise/block_loop.cuh"
#include "kernels/cuda/elementwise/elementwise.h"
#include "kernels/sum_of_squares.h"

namespace muster::kernels::cuda {

namespace {

using cpu::Bf16;

constexpr uint32_t kInfinity = 0x7f800000;
constexpr unsigned kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffff;

// The bits without the sign.
template <typename T>
__device__ uint32_t magnitude(T value) {
  return cpu::bits_of(cpu::load(value)) & 0x7fffffffu;
}

__device__ bool skipped(const ValueBlock& block) { return block.data == nullptr || !is_active(block.active); }

template <typename T, int N>
struct Loaded {
  T values[N];
};

// A chunk of values, read 16 bytes at a time. The bodies below add write(), which looks at what was read.
template <typename T>
struct ValueOperand {
  template <int N>
  using Values = Loaded<T, N>;

  Operand<T> data;

  __device__ ValueOperand(const ValueBlock& block, const Chunk& chunk)
      : data(static_cast<T*>(const_cast<void*>(block.data)), block.stride, chunk) {}

  template <int N>
  __device__ bool aligned(const Chunk& chunk) const {
    return data.template aligned<N>(chunk);
  }
  template <int N>
  __device__ void read(Place p, Values<N>& v) const {
    cuda::read(v.values, static_cast<const T*>(data.at(p)));
  }
};

template <typename T>
constexpr int kVector = 16 / sizeof(T);

// Squares of mantissas are added by exponent: every thread has its own bin for every four exponents. Bit 0 of bin b is
// bit 8 b of the sum, a square takes at most 54 of the bin's 64 bits, and a thread adds at most 512 squares.
constexpr int kSumThreads = 64;
constexpr int kSumChunk = 1 << 14;
constexpr int kBins = 64;
static_assert(kSumChunk / kSumThreads <= 512);

struct SumOptions {
  static constexpr int kBlockThreads = kSumThreads;
  unsigned long long* words;
};

template <typename T>
struct SquareBody : ValueOperand<T> {
  uint64_t* bins;  // of this thread, kSumThreads apart
  unsigned nans = 0;
  unsigned infinities = 0;

  __device__ SquareBody(const ValueBlock& block, const Chunk& chunk, uint64_t* own)
      : ValueOperand<T>(block, chunk), bins(own) {}

  template <int N>
  __device__ void write(Place, Loaded<T, N>& v) {
    uint32_t largest = 0;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const uint32_t m = magnitude(v.values[i]);
      add<1>(m);
      largest = max(largest, m);
    }
    if (largest >= kInfinity) subtract_non_finite(v);
  }

 private:
  template <int kSign>
  __device__ void add(uint32_t m) {
    // A subnormal has the exponent of the smallest normal number.
    const uint32_t exponent = (max(m, 1u << 23) >> 23) - 1;
    const uint32_t mantissa = m - (exponent << 23);
    const uint64_t square = static_cast<uint64_t>(mantissa) * mantissa << (exponent % 4 * 2);
    uint64_t& bin = bins[exponent / 4 * kSumThreads];
    bin = kSign > 0 ? bin + square : bin - square;
  }

  // Removes the squares of NaNs and infinities, which were added like the others, and counts them.
  template <int N>
  __device__ void subtract_non_finite(const Loaded<T, N>& v) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const uint32_t m = magnitude(v.values[i]);
      if (m < kInfinity) continue;
      add<-1>(m);
      m == kInfinity ? ++infinities : ++nans;
    }
  }
};

__device__ uint64_t warp_sum(uint64_t value) {
  for (unsigned lanes = kWarp / 2; lanes > 0; lanes /= 2) value += __shfl_down_sync(kAllLanes, value, lanes);
  return value;
}

// `amount` is below 2^38.
__device__ void add_at_bit(unsigned long long* words, int bit, uint64_t amount) {
  const uint64_t shifted = amount << bit % 32;
  atomicAdd(words + bit / 32, shifted & 0xffffffffu);
  atomicAdd(words + bit / 32 + 1, shifted >> 32);
}

// Adds the bins of all threads to the words.
__device__ void add_bins(const uint64_t (&bins)[kBins][kSumThreads], unsigned long long* words) {
  static_assert(kSumThreads == 2 * kWarp);
  const unsigned lane = threadIdx.x % kWarp;
  for (unsigned b = threadIdx.x / kWarp; b < kBins; b += kSumThreads / kWarp) {
    const uint64_t one = bins[b][lane];
    const uint64_t other = bins[b][lane + kWarp];
    if (!__any_sync(kAllLanes, (one | other) != 0)) continue;
    const uint64_t low = warp_sum((one & 0xffffffffu) + (other & 0xffffffffu));
    const uint64_t high = warp_sum((one >> 32) + (other >> 32));
    if (lane == 0) {
      add_at_bit(words, static_cast<int>(8 * b), low);
      add_at_bit(words, static_cast<int>(8 * b) + 32, high);
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(kSumThreads) sum_kernel(Call<SumOptions, ValueBlock, kSumChunk> call) {
  constexpr int kLimbs = SumOfSquares::kLimbs;
  constexpr int kWords = SumOfSquares::kWords;
  __shared__ uint64_t bins[kBins][kSumThreads];
  __shared__ unsigned long long words[kWords];
  const unsigned thread = threadIdx.x;
  for (auto& bin : bins) bin[thread] = 0;
  if (thread < kWords) words[thread] = 0;

  const auto [block, chunk] = call.part();
  if (skipped(block)) return;
  SquareBody<T> body(block, chunk, &bins[0][thread]);
  each<kVector<T>, 32 / kVector<T>>(body, chunk);

  __syncthreads();
  add_bins(bins, words);
  if (body.nans > 0) atomicAdd(&words[kLimbs], body.nans);
  if (body.infinities > 0) atomicAdd(&words[kLimbs + 1], body.infinities);
  __syncthreads();
  if (thread >= kWords) return;
  unsigned long long mine = words[thread];
  // Carries by one limb, which leaves every word below 2^33. No carry leaves the last limb.
  if (thread < kLimbs) mine = (mine & 0xffffffffu) + (thread == 0 ? 0 : words[thread - 1] >> 32);
  if (mine != 0) atomicAdd(call.options->words + block.number * kWords + thread, mine);
}

template <typename T>
struct FiniteBody : ValueOperand<T> {
  using ValueOperand<T>::ValueOperand;

  uint32_t largest = 0;

  template <int N>
  __device__ void write(Place, Loaded<T, N>& v) {
#pragma unroll
    for (int i = 0; i < N; ++i) largest = max(largest, magnitude(v.values[i]));
  }
};

struct FindOptions {
  int64_t* found;
};

template <typename T>
__global__ void __launch_bounds__(kThreads) find_kernel(Call<FindOptions, ValueBlock> call) {
  const auto [block, chunk] = call.part();
  if (skipped(block)) return;
  FiniteBody<T> body(block, chunk);
  each<kVector<T>, 4>(body, chunk);
  const bool found = __syncthreads_or(body.largest >= kInfinity ? 1 : 0) != 0;
  if (found && threadIdx.x == 0) call.options->found[block.number] = 1;  // other thread blocks may too
}

template <typename T>
struct ZeroBody : ValueOperand<T> {
  using ValueOperand<T>::ValueOperand;

  // Writes only if there is something to replace, which is rare.
  template <int N>
  __device__ void write(Place p, Loaded<T, N>& v) const {
    bool found = false;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (magnitude(v.values[i]) < kInfinity) continue;
      v.values[i] = T{};
      found = true;
    }
    if (found) cuda::write(this->data.at(p), v.values);
  }
};

template <typename T>
__global__ void __launch_bounds__(kThreads) zero_kernel(Call<NoOptions, ValueBlock> call) {
  const auto [block, chunk] = call.part();
  if (skipped(block)) return;
  ZeroBody<T> body(block, chunk);
  each<kVector<T>, 4>(body, chunk);
}

template <typename T>
struct FingerprintBody : ValueOperand<T> {
  int64_t first;  // index of the chunk's first value
  uint64_t sum = 0;

  __device__ FingerprintBody(const FingerprintRange& range, const Chunk& chunk)
      : ValueOperand<T>(ValueBlock{.rows = 1, .columns = range.count, .data = range.data}, chunk),
        first(chunk.column) {}

  template <int N>
  __device__ void write(Place p, Loaded<T, N>& v) {
#pragma unroll
    for (int i = 0; i < N; ++i) sum += cpu::value_fingerprint(cpu::load(v.values[i]), first + p.column + i);
  }
};

struct FingerprintOptions {
  unsigned long long* words;
  int64_t total;
};

template <typename T>
__global__ void __launch_bounds__(kThreads) fingerprint_kernel(Call<FingerprintOptions, FingerprintRange> call) {
  const auto [range, chunk] = call.part();
  if (range.data == nullptr) return;
  FingerprintBody<T> body(range, chunk);
  each<kVector<T>, 4>(body, chunk);
  const uint64_t sum = warp_sum(body.sum);
  if (threadIdx.x % kWarp != 0) return;
  atomicAdd(call.options->words + range.word, sum * range.factor);
  if (range.total_factor != 0) atomicAdd(call.options->words + call.options->total, sum * range.total_factor);
}

unsigned long long* counters(int64_t* words) { return reinterpret_cast<unsigned long long*>(words); }

}  // namespace

void sum_squares(Dtype dtype, std::span<const ValueBlock> blocks, int64_t* words, LaunchQueue& queue) {
  with_dtype(dtype, "values", [&]<typename T>(Type<T>) {
    enqueue("sum of squares", sum_kernel<T>, SumOptions{counters(words)}, blocks, queue);
  });
}

void find_non_finite(Dtype dtype, std::span<const ValueBlock> blocks, int64_t* found, LaunchQueue& queue) {
  with_dtype(dtype, "values", [&]<typename T>(Type<T>) {
    enqueue("find non-finite", find_kernel<T>, FindOptions{found}, blocks, queue);
  });
}

void fingerprint(Dtype dtype, std::span<const FingerprintRange> ranges, int64_t* words, int64_t total,
                 LaunchQueue& queue) {
  with_dtype(dtype, "values", [&]<typename T>(Type<T>) {
    enqueue("fingerprint", fingerprint_kernel<T>, FingerprintOptions{counters(words), total}, ranges, queue);
  });
}

void zero_non_finite(Dtype dtype, std::span<const ValueBlock> blocks, LaunchQueue& queue) {
  with_dtype(dtype, "values",
             [&]<typename T>(Type<T>) { enqueue("zero non-finite", zero_kernel<T>, NoOptions{}, blocks, queue); });
}

}  // namespace muster::kernels::cuda
