// How does planning grow with the ranks? moe-397b, 61,905 matrices, from 8 ranks to 4096.
//
// Beside the time: waves, over_bound, and the peak memory of the process so far (ranks ascend, so it is this run's).
#include <string>

#include <benchmark/benchmark.h>
#include <sys/resource.h>

#include "model/model.h"
#include "muster/plan.h"

namespace muster {
namespace {

void plan_growth(benchmark::State& state) {
  ModelOptions model;
  model.mesh = "fsdp=" + std::to_string(state.range(0));
  const Problem problem = load_model("moe-397b", model);
  PlanOptions options;
  options.scratch_bytes = int64_t{4096} << 20;
  Plan plan;
  for (auto _ : state) {
    plan = make_plan(problem, options);
    benchmark::DoNotOptimize(plan.hash);
  }
  const PlanSummary summary = summarize(problem, plan, options.cost);
  if (summary.padding_bytes != 0) state.SkipWithError("a global plan pads");
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  state.counters["waves"] = static_cast<double>(summary.rounds);
  state.counters["over_bound"] = summary.over_bound();
  state.counters["peak_mib"] = static_cast<double>(usage.ru_maxrss) / 1024;
}
BENCHMARK(plan_growth)->RangeMultiplier(2)->Range(8, 4096)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace muster
