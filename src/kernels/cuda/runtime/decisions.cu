#include "kernels/cuda/runtime/decisions.h"
#include "kernels/sum_of_squares_value.h"

namespace muster::kernels::cuda {

namespace {

// One thread block per kernel: there is little to do, and all threads must see the same verdict.
constexpr unsigned kThreads = 512;

__device__ bool any_set(const int64_t* words, int64_t count) {
  bool set = false;
  for (int64_t i = threadIdx.x; i < count; i += kThreads) set = set || words[i] != 0;
  return __syncthreads_or(set ? 1 : 0) != 0;
}

__global__ void __launch_bounds__(kThreads) decide_kernel(const Decision* decision) {
  const Decision d = *decision;
  const bool go = !any_set(d.words, d.zeros);
  for (int64_t p = threadIdx.x; p < d.parameters; p += kThreads) {
    const bool present = d.present[p] != 0;
    d.active[p] = go && present ? 1 : 0;
    d.sitting[p] = go && !present ? 1 : 0;
  }
  if (threadIdx.x == 0) {
    d.verdict->clip = 1;
    d.verdict->norm = 0;
    d.verdict->go = go ? 1 : 0;
  }
}

__global__ void __launch_bounds__(kThreads) refuse_kernel(const Refusal* refusal) {
  const Refusal r = *refusal;
  if (!any_set(r.words, r.count)) return;
  for (int64_t p = threadIdx.x; p < r.parameters; p += kThreads) {
    r.active[p] = 0;
    r.sitting[p] = 0;
  }
  if (threadIdx.x == 0) r.verdict->go = 0;
}

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
  // The product is rounded before eps is added, as on the host: no fused multiply-add.
  const double norm = __dmul_rn(sqrt(value_of_words(words)), fabs(c.grad_scale));
  const double ratio = c.max_norm / (norm + kClipEps);
  c.verdict->norm = norm;
  c.verdict->clip = c.max_norm > 0 && ratio < 1 ? ratio : 1;  // a norm that is not a number clips nothing
}

__global__ void __launch_bounds__(kThreads) count_kernel(const Count* count) {
  const Count c = *count;
  for (int64_t p = threadIdx.x; p < c.parameters; p += kThreads) c.updates[p] += c.active[p];
}

template <typename Arguments>
void enqueue(const char* what, void (*kernel)(const Arguments*), unsigned threads, const Arguments& arguments,
             LaunchQueue& queue) {
  const Arguments* const device = queue.upload(arguments);
  queue.launch(what, {}, [&](cudaStream_t stream) { kernel<<<1, threads, 0, stream>>>(device); });
}

}  // namespace

void decide(const Decision& decision, LaunchQueue& queue) {
  enqueue("decide", decide_kernel, kThreads, decision, queue);
}

void refuse(const Refusal& refusal, LaunchQueue& queue) { enqueue("refuse", refuse_kernel, kThreads, refusal, queue); }

void clip(const Clip& clip, LaunchQueue& queue) { enqueue("clip", clip_kernel, 32, clip, queue); }

void count(const Count& count, LaunchQueue& queue) { enqueue("count", count_kernel, kThreads, count, queue); }

}  // namespace muster::kernels::cuda
