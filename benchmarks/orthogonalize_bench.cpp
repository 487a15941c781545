// How fast are batches orthogonalized on the CPU? A quarter of GPT-2's depth (12 x (768,768), 3 x (3072,768),
// 3 x (768,3072)), 5 steps, against the usual way on the same BLAS and threads: gemm only, standard form, one matrix at
// a time. Beside the time: FLOPs executed against those of the usual way, and the share of the sgemm peak, measured
// on the same threads.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <benchmark/benchmark.h>

#include "kernels/cpu/newton_schulz.h"
#include "kernels/kernels.h"
#include "usual_way.h"

namespace muster::kernels {
namespace {

using bench::Batch;
using bench::kWorkload;
using bench::random_values;
using bench::SgemmPeak;
using bench::UsualWay;

constexpr int kThreads = 2;
constexpr size_t kSteps = 5;

// The best of a few, in FLOP/s.
double sgemm_peak() {
  SgemmPeak peak(kThreads, 2048);
  bench::Rate best;
  for (int repeat = 0; repeat < 8; ++repeat) best.raise_to(peak.measure());
  return best.wall;
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
  UsualWay usual(kThreads, {.coefficients = coefficients("polar_express")});
  Data data = make_data();
  double standard = 0;
  for (const Batch& batch : kWorkload)
    standard += UsualWay::flops(batch.shape, kSteps) * static_cast<double>(batch.count);
  for (auto _ : state) {
    data.outputs = data.inputs;
    size_t m = 0;
    for (const Batch& batch : kWorkload) {
      for (int64_t i = 0; i < batch.count; ++i, ++m) usual.orthogonalize(batch.shape, data.outputs[m]);
    }
  }
  report(state, standard, standard);
}

void muster_way(benchmark::State& state) {
  cpu::ThreadPool pool(kThreads);
  cpu::NewtonSchulzOptions options{.coefficients = coefficients("polar_express")};
  options.input = Dtype::kF32;
  Data data = make_data();
  double executed = 0;
  double standard = 0;
  std::vector<cpu::MatrixPair> pairs;
  int64_t bytes = 0;
  for (const Batch& batch : kWorkload) {
    const double count = static_cast<double>(batch.count);
    executed += count * cpu::newton_schulz_flops(cpu::form_of(batch.shape), batch.shape, int64_t{kSteps});
    standard += count * UsualWay::flops(batch.shape, kSteps);
    bytes = std::max(bytes, kThreads * cpu::newton_schulz_matrix_bytes(cpu::form_of(batch.shape), batch.shape));
  }
  for (size_t m = 0; m < data.inputs.size(); ++m) pairs.push_back({data.inputs[m].data(), data.outputs[m].data()});
  std::vector<float> scratch(static_cast<size_t>(bytes / 4 + 16));
  void* aligned = scratch.data();
  size_t space = scratch.size() * 4;
  std::align(64, static_cast<size_t>(bytes), aligned, space);
  for (auto _ : state) {
    int64_t m = 0;
    for (const Batch& batch : kWorkload) {
      const std::span<const cpu::MatrixPair> part(pairs.data() + m, static_cast<size_t>(batch.count));
      cpu::newton_schulz({cpu::best_elementwise(), pool, cpu::form_of(batch.shape)}, options, batch.shape, part,
                         {aligned, bytes});
      m += batch.count;
    }
  }
  report(state, executed, standard);
  state.counters["scratch_mib"] = static_cast<double>(bytes) / (1 << 20);

  // The first and the last matrix, the usual way: the forms differ by rounding only.
  UsualWay usual(kThreads, {.coefficients = options.coefficients});
  for (const size_t m : {size_t{0}, data.inputs.size() - 1}) {
    std::vector<float> expected = data.inputs[m];
    usual.orthogonalize(m == 0 ? kWorkload.front().shape : kWorkload.back().shape, expected);
    for (size_t i = 0; i < expected.size(); ++i) {
      if (std::abs(expected[i] - data.outputs[m][i]) > 1e-4f) state.SkipWithError("the result is wrong");
    }
  }
}

BENCHMARK(usual_way)->MeasureProcessCPUTime()->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(muster_way)->MeasureProcessCPUTime()->UseRealTime()->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace muster::kernels
