// A program of somebody else's: plans one matrix whose rows two ranks share.
#include <cstdio>
#include <exception>
#include <utility>

#include "muster/plan.h"

int main() try {
  muster::Mesh mesh;
  mesh.name = "line";
  mesh.axes = {{"fsdp", 2}};

  muster::Parameter weight;
  weight.name = "weight";
  weight.shape = {64, 32};
  weight.layout.placements = {muster::Placement::shard(0)};

  muster::Problem problem;
  problem.model = "consumer";
  problem.ranks = 2;
  problem.meshes.push_back(std::move(mesh));
  problem.parameters.push_back(std::move(weight));

  const muster::PlanOptions options;
  const muster::Plan plan = muster::make_plan(problem, options);
  const muster::PlanSummary summary = muster::summarize(problem, plan, options.cost);
  std::printf("plan %016llx, %lld collectives\n", static_cast<unsigned long long>(plan.hash),
              static_cast<long long>(summary.collectives));
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
