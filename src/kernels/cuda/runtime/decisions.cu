#include "kernels/cuda/runtime/decisions.h"
#include "kernels/sum_of_squares_value.h"

namespace muster::kernels::cuda {

namespace {

// One thread block: there is little to do, and its threads agree.
constexpr unsigned kThreads = 512;

__device__ bool any_set(const int64_t* words, int64_t count) {
  bool set = false;
  for (int64_t i = threadIdx.x; i < count; i += kThreads) set = set || words[i] != 0;
  return __syncthreads_or(set ? 1 : 0) != 0;
}

struct Decision {
  const int64_t* words;
  int64_t zeros;
  const int64_t* present;
  int32_t* active;
  int64_t parameters;
  Verdict* verdict;
};

__global__ void __launch_bounds__(kThreads) decide_kernel(const Decision* decision) {
  const Decision d = *decision;
  const bool go = !any_set(d.words, d.zeros);
  for (int64_t p = threadIdx.x; p < d.parameters; p += kThreads) d.active[p] = go && d.present[p] != 0 ? 1 : 0;
  if (threadIdx.x == 0) {
    d.verdict->clip = 1;
    d.verdict->norm = 0;
    d.verdict->go = go ? 1 : 0;
  }
}

struct Refusal {
  const int64_t* words;
  int64_t count;
  int32_t* active;
  int64_t parameters;
  Verdict* verdict;
};

__global__ void __launch_bounds__(kThreads) refuse_kernel(const Refusal* refusal) {
  const Refusal r = *refusal;
  if (!any_set(r.words, r.count)) return;
  for (int64_t p = threadIdx.x; p < r.parameters; p += kThreads) r.active[p] = 0;
  if (threadIdx.x == 0) r.verdict->go = 0;
}

struct Clip {
  const int64_t* words;
  int64_t sums;
  double grad_scale;
  double max_norm;
  Verdict* verdict;
};

__global__ void clip_kernel(const Clip* clip) {
  constexpr int kWords = SumOfSquares::kWords;
  __shared__ int64_t words[kWords];
  const Clip c = *clip;
  if (threadIdx.x < kWords) {
    int64_t word = 0;
    for (int64_t s = 0; s < c.sums; ++s) word += c.words[s * kWords + threadIdx.x];
    words[threadIdx.x] = word;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  // Rounded before eps is added, as on the host: no fused multiply-add.
  const double norm = __dmul_rn(sqrt(value_of_words(words)), fabs(c.grad_scale));
  const double ratio = c.max_norm / (norm + kClipEps);
  c.verdict->norm = norm;
  c.verdict->clip = c.max_norm > 0 && ratio < 1 ? ratio : 1;  // a norm that is not a number clips nothing
}

struct Count {
  const int32_t* active;
  int64_t parameters;
  int64_t* updates;
};

__global__ void __launch_bounds__(kThreads) count_kernel(const Count* count) {
  const Count c = *count;
  for (int64_t p = threadIdx.x; p < c.parameters; p += kThreads) c.updates[p] += c.active[p];
}

template <typename Arguments>
void enqueue(const char* what, void (*kernel)(const Arguments*), unsigned threads, const Arguments& arguments,
             Queue& queue) {
  const Arguments* const device = queue.put(arguments);
  queue.launch(what, {}, [&](cudaStream_t stream) { kernel<<<1, threads, 0, stream>>>(device); });
}

}  // namespace

void decide(const int64_t* words, int64_t zeros, const int64_t* present, std::span<int32_t> active, Verdict* verdict,
            Queue& queue) {
  enqueue("decide", decide_kernel, kThreads,
          Decision{words, zeros, present, active.data(), static_cast<int64_t>(active.size()), verdict}, queue);
}

void refuse(std::span<const int64_t> words, std::span<int32_t> active, Verdict* verdict, Queue& queue) {
  enqueue("refuse", refuse_kernel, kThreads,
          Refusal{words.data(), static_cast<int64_t>(words.size()), active.data(), static_cast<int64_t>(active.size()),
                  verdict},
          queue);
}

void clip(const int64_t* words, int64_t sums, double grad_scale, double max_norm, Verdict* verdict, Queue& queue) {
  enqueue("clip", clip_kernel, 32, Clip{words, sums, grad_scale, max_norm, verdict}, queue);
}

void count(std::span<const int32_t> active, int64_t* updates, Queue& queue) {
  enqueue("count", count_kernel, kThreads, Count{active.data(), static_cast<int64_t>(active.size()), updates}, queue);
}

}  // namespace muster::kernels::cuda
