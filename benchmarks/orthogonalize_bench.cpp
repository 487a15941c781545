// How fast are batches orthogonalized on the CPU? A quarter of GPT-2's depth (12 x (768,768), 3 x (3072,768),
// 3 x (768,3072)), 5 steps, against the usual way on the same BLAS and threads: gemm only, standard form, one matrix at
// a time. Beside the time: FLOPs executed against those of the usual way, and the share of the sgemm peak, measured
// first on the same threads.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include <benchmark/benchmark.h>

#include "kernels/cpu/orthogonalize.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/kernels.h"

extern "C" void sgemm_(const char* ta, const char* tb, const int* m, const int* n, const int* k, const float* alpha,
                       const float* a, const int* lda, const float* b, const int* ldb, const float* beta, float* c,
                       const int* ldc);

namespace muster::kernels {
namespace {

constexpr int kThreads = 2;
constexpr int64_t kSteps = 5;

struct Batch {
  MatrixShape shape;
  int64_t count;
};
const std::vector<Batch> kWorkload{{{768, 768}, 12}, {{3072, 768}, 3}, {{768, 3072}, 3}};

double g_peak = 0;  // FLOP/s, of the first benchmark

double standard_flops(MatrixShape shape) {
  const double n = static_cast<double>(std::min(shape.rows, shape.columns));
  const double longer = static_cast<double>(std::max(shape.rows, shape.columns));
  return static_cast<double>(kSteps) * (4 * n * n * longer + 2 * n * n * n);
}

std::vector<float> random_values(int64_t count) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(count));
  for (float& x : values) x = normal(random);
  return values;
}

void sgemm_peak(benchmark::State& state) {
  constexpr int n = 2048;
  cpu::ThreadPool pool(kThreads);
  const std::vector<float> a = random_values(n * n);
  std::vector<std::vector<float>> c(kThreads, std::vector<float>(n * n));
  const float one = 1;
  const float zero = 0;
  for (auto _ : state) {
    pool.run(kThreads, [&](int64_t i, int) {
      sgemm_("N", "N", &n, &n, &n, &one, a.data(), &n, a.data(), &n, &zero, c[static_cast<size_t>(i)].data(), &n);
    });
  }
  const double flops = 2.0 * n * n * n * kThreads;
  state.counters["flops"] = benchmark::Counter(flops, benchmark::Counter::kIsIterationInvariantRate);
}

// The slowest of the batch's products sets the pace of a usual implementation: rows split evenly over the threads.
void threaded_gemm(cpu::ThreadPool& pool, bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k,
                   const float* a, const float* b, float* c) {
  const int64_t each = (m + kThreads - 1) / kThreads;
  pool.run(kThreads, [&](int64_t t, int) {
    const int64_t begin = t * each;
    const int rows = static_cast<int>(std::min(each, m - begin));
    const int columns = static_cast<int>(n);
    const int inner = static_cast<int>(k);
    const int lda = static_cast<int>(transpose_a ? m : k);
    const int ldb = static_cast<int>(transpose_b ? k : n);
    const float one = 1;
    const float zero = 0;
    sgemm_(transpose_b ? "T" : "N", transpose_a ? "T" : "N", &columns, &rows, &inner, &one, b, &ldb,
           a + (transpose_a ? begin : begin * k), &lda, &zero, c + begin * n, &columns);
  });
}

void usual_orthogonalize(cpu::ThreadPool& pool, const Coefficients& set, MatrixShape shape, std::vector<float>& x) {
  const bool wide = shape.rows <= shape.columns;
  const int64_t n = std::min(shape.rows, shape.columns);
  const int64_t longer = std::max(shape.rows, shape.columns);
  std::vector<float> gram(static_cast<size_t>(n * n));
  std::vector<float> square(gram.size());
  std::vector<float> product(x.size());
  double sum = 0;
  for (float v : x) sum += static_cast<double>(v) * v;
  const float factor = static_cast<float>(1 / (set.safety * std::sqrt(sum)));
  for (float& v : x) v *= factor;
  for (const Step& step : set.steps) {
    threaded_gemm(pool, !wide, wide, n, n, longer, x.data(), x.data(), gram.data());
    threaded_gemm(pool, false, false, n, n, n, gram.data(), gram.data(), square.data());
    const float a = static_cast<float>(step.a);
    const float b = static_cast<float>(step.b);
    const float c = static_cast<float>(step.c);
    for (size_t i = 0; i < gram.size(); ++i) square[i] = b * gram[i] + c * square[i];
    const float* left = wide ? square.data() : x.data();
    const float* right = wide ? x.data() : square.data();
    threaded_gemm(pool, false, false, shape.rows, shape.columns, n, left, right, product.data());
    for (size_t i = 0; i < x.size(); ++i) x[i] = a * x[i] + product[i];
  }
}

// The workload, its results, and what a run of it counts.
struct Data {
  std::vector<std::vector<float>> inputs;
  std::vector<std::vector<float>> outputs;
};

Data make_data() {
  Data data;
  for (const Batch& batch : kWorkload) {
    for (int64_t i = 0; i < batch.count; ++i) {
      data.inputs.push_back(random_values(batch.shape.rows * batch.shape.columns));
    }
  }
  data.outputs = data.inputs;
  return data;
}

void report(benchmark::State& state, double executed, double standard) {
  using benchmark::Counter;
  state.counters["executed_gflop"] = executed / 1e9;
  state.counters["standard_gflop"] = standard / 1e9;
  state.counters["executed"] = Counter(executed, Counter::kIsIterationInvariantRate);
  state.counters["standard"] = Counter(standard, Counter::kIsIterationInvariantRate);
  if (g_peak > 0) state.counters["share_of_peak"] = Counter(executed / g_peak, Counter::kIsIterationInvariantRate);
}

// Runs one benchmark's peak outside of the timing framework, for the shares beside the others.
void measure_peak() {
  if (g_peak > 0) return;
  constexpr int n = 2048;
  cpu::ThreadPool pool(kThreads);
  const std::vector<float> a = random_values(n * n);
  std::vector<std::vector<float>> c(kThreads, std::vector<float>(n * n));
  const float one = 1;
  const float zero = 0;
  for (int repeat = 0; repeat < 6; ++repeat) {
    const auto start = std::chrono::steady_clock::now();
    pool.run(kThreads, [&](int64_t i, int) {
      sgemm_("N", "N", &n, &n, &n, &one, a.data(), &n, a.data(), &n, &zero, c[static_cast<size_t>(i)].data(), &n);
    });
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    g_peak = std::max(g_peak, 2.0 * n * n * n * kThreads / seconds.count());
  }
}

void usual_way(benchmark::State& state) {
  measure_peak();
  cpu::ThreadPool pool(kThreads);
  const Coefficients set = coefficients("polar_express");
  Data data = make_data();
  double standard = 0;
  for (const Batch& batch : kWorkload) standard += standard_flops(batch.shape) * static_cast<double>(batch.count);
  for (auto _ : state) {
    data.outputs = data.inputs;
    size_t m = 0;
    for (const Batch& batch : kWorkload) {
      for (int64_t i = 0; i < batch.count; ++i, ++m) usual_orthogonalize(pool, set, batch.shape, data.outputs[m]);
    }
  }
  report(state, standard, standard);
}

void muster_way(benchmark::State& state) {
  measure_peak();
  const auto kernels = make_cpu_kernels({.threads = kThreads});
  OrthogonalizeOptions options{.coefficients = coefficients("polar_express")};
  options.input = Dtype::kF32;
  Data data = make_data();
  double executed = 0;
  double standard = 0;
  std::vector<MatrixPair> pairs;
  int64_t bytes = 0;
  for (const Batch& batch : kWorkload) {
    const double count = static_cast<double>(batch.count);
    executed += count * cpu::orthogonalize_flops(cpu::form_of(batch.shape), batch.shape, kSteps);
    standard += count * standard_flops(batch.shape);
    bytes = std::max(bytes, kernels->orthogonalize_workspace(batch.shape, batch.count));
  }
  for (size_t m = 0; m < data.inputs.size(); ++m) pairs.push_back({data.inputs[m].data(), data.outputs[m].data()});
  std::vector<float> scratch(static_cast<size_t>(bytes / 4 + 16));
  void* aligned = scratch.data();
  size_t space = scratch.size() * 4;
  std::align(64, static_cast<size_t>(bytes), aligned, space);
  for (auto _ : state) {
    int64_t m = 0;
    for (const Batch& batch : kWorkload) {
      const std::span<const MatrixPair> part(pairs.data() + m, static_cast<size_t>(batch.count));
      kernels->orthogonalize(options, batch.shape, part, {aligned, bytes});
      m += batch.count;
    }
  }
  report(state, executed, standard);
  state.counters["scratch_mib"] = static_cast<double>(bytes) / (1 << 20);

  // The first and the last matrix, the usual way: the forms differ by rounding only.
  cpu::ThreadPool pool(kThreads);
  for (const size_t m : {size_t{0}, data.inputs.size() - 1}) {
    std::vector<float> expected = data.inputs[m];
    usual_orthogonalize(pool, options.coefficients, m == 0 ? kWorkload.front().shape : kWorkload.back().shape,
                        expected);
    for (size_t i = 0; i < expected.size(); ++i) {
      if (std::abs(expected[i] - data.outputs[m][i]) > 1e-4f) state.SkipWithError("the result is wrong");
    }
  }
}

BENCHMARK(sgemm_peak)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(usual_way)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(muster_way)->UseRealTime()->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace muster::kernels
