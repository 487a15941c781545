// Steps that begin while gradients still come, on a GPU over NCCL: each rank, with an order of its own, has the bits of
// steps that do not.
#include <string>

#include "comm/nccl/ranks.h"
#include "support/overlapped.h"

namespace muster::test {
namespace {

constexpr auto kTimeout = std::chrono::seconds(60);
constexpr int kProblems = 6;  // ranks that share a GPU take turns, some ten milliseconds an exchange

std::string find_wrong(Communicator& comm, Communicator& host) {
  int64_t early = 0;
  int planned = 0;
  for (uint64_t seed = 0; planned < kProblems; ++seed) {
    const RandomCase c = random_case(seed);
    if (c.problem.ranks != comm.size()) continue;
    ++planned;
    Training t = random_overlap(seed, c);
    t.options.device = {Device::Kind::kCuda, 0, nullptr};
    t.options.plan.cost = CostTable::h200();
    t.steps = 4;
    const RankMemory overlapped = train_rank(t, comm);
    for (const StepStats& stats : overlapped.stats) early += stats.early_waves;
    const std::string differs = difference(c.problem, overlapped, train_rank(without_overlap(t), comm));
    if (!differs.empty()) return "seed " + std::to_string(seed) + ": " + differs;
  }
  host.all_reduce(std::span(&early, 1), ReduceOp::kSum, "early waves")
      ->wait();  // some rank may get all its gradients late
  return early > 0 ? "" : "no wave began early";
}

}  // namespace
}  // namespace muster::test

int main(int argc, char** argv) {
  using namespace muster::test;
  return run_program(argc, argv, kTimeout, find_wrong);
}
