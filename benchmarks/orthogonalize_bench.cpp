// How fast are batches orthogonalized on the CPU? A quarter of GPT-2's depth (12 x (768,768), 3 x (3072,768),
// 3 x (768,3072)), 5 steps, against the usual way on the same BLAS and threads: gemm only, standard form, one matrix at
// a time. Beside the time: FLOPs executed against those of the usual way, and the share of the sgemm peak, measured
// on the same threads.
#include <algorithm>
#include <blis.h>
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

namespace muster::kernels {
namespace {

constexpr int kThreads = 2;
constexpr int64_t kSteps = 5;

struct Batch {
  MatrixShape shape;
  int64_t count;
};
const std::vector<Batch> kWorkload{{{768, 768}, 12}, {{3072, 768}, 3}, {{768, 3072}, 3}};

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

struct Operand {
  const float* data;
  int64_t stride;
  trans_t transpose = BLIS_NO_TRANSPOSE;
};

// C = A B, row-major, on this thread, at the best rate BLIS has for these sizes.
void sgemm(MatrixShape c_shape, int64_t inner, Operand a, Operand b, float* c) {
  rntm_t runtime;
  bli_rntm_init(&runtime);
  bli_rntm_set_num_threads(1, &runtime);
  bli_rntm_disable_l3_sup(&runtime);
  float one = 1;
  float zero = 0;
  bli_sgemm_ex(a.transpose, b.transpose, c_shape.rows, c_shape.columns, inner, &one, const_cast<float*>(a.data),
               a.stride, 1, const_cast<float*>(b.data), b.stride, 1, &zero, c, c_shape.columns, 1, nullptr, &runtime);
}

// The best of a few, in FLOP/s: each thread a product of its own.
double sgemm_peak() {
  constexpr int64_t n = 2048;
  cpu::ThreadPool pool(kThreads);
  const std::vector<float> a = random_values(n * n);
  std::vector<std::vector<float>> c(kThreads, std::vector<float>(n * n));
  double best = 0;
  for (int repeat = 0; repeat < 8; ++repeat) {
    const auto start = std::chrono::steady_clock::now();
    pool.run(kThreads, [&](int64_t i, int) {
      sgemm({n, n}, n, {a.data(), n}, {a.data(), n}, c[static_cast<size_t>(i)].data());
    });
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    best = std::max(best, 2.0 * n * n * n * kThreads / seconds.count());
  }
  return best;
}

// Rows split evenly over the threads.
void threaded_sgemm(cpu::ThreadPool& pool, MatrixShape shape, int64_t inner, Operand a, Operand b, float* c) {
  const int64_t each = (shape.rows + kThreads - 1) / kThreads;
  pool.run(kThreads, [&](int64_t t, int) {
    const int64_t begin = t * each;
    Operand mine = a;
    mine.data += a.transpose == BLIS_TRANSPOSE ? begin : begin * a.stride;
    sgemm({std::min(each, shape.rows - begin), shape.columns}, inner, mine, b, c + begin * shape.columns);
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
  for (const Coefficients::Step& step : set.steps) {
    const Operand plain{x.data(), shape.columns};
    const Operand transposed{x.data(), shape.columns, BLIS_TRANSPOSE};
    threaded_sgemm(pool, {n, n}, longer, wide ? plain : transposed, wide ? transposed : plain, gram.data());
    threaded_sgemm(pool, {n, n}, n, {gram.data(), n}, {gram.data(), n}, square.data());
    const float a = static_cast<float>(step.a);
    const float b = static_cast<float>(step.b);
    const float c = static_cast<float>(step.c);
    for (size_t i = 0; i < gram.size(); ++i) square[i] = b * gram[i] + c * square[i];
    const Operand polynomial{square.data(), n};
    threaded_sgemm(pool, shape, n, wide ? polynomial : plain, wide ? plain : polynomial, product.data());
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
  static const double peak = sgemm_peak();
  state.counters["peak_gflops"] = peak / 1e9;
  state.counters["executed_gflop"] = executed / 1e9;
  state.counters["standard_gflop"] = standard / 1e9;
  state.counters["executed"] = Counter(executed, Counter::kIsIterationInvariantRate);
  state.counters["standard"] = Counter(standard, Counter::kIsIterationInvariantRate);
  state.counters["share_of_peak"] = Counter(executed / peak, Counter::kIsIterationInvariantRate);
}

void usual_way(benchmark::State& state) {
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

BENCHMARK(usual_way)->MeasureProcessCPUTime()->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(muster_way)->MeasureProcessCPUTime()->UseRealTime()->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace muster::kernels
