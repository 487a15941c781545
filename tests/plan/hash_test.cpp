#include "base/hash.h"

#include <functional>
#include <set>

#include <gtest/gtest.h>

#include "plan/plan_hash.h"
#include "support/problems.h"

namespace muster::plan {
namespace {

TEST(Hashes, ChangeWithEverythingThatThePlannerReads) {
  const std::vector<std::function<void(Problem&, PlanOptions&)>> changes{
      [](Problem&, PlanOptions&) {},
      [](Problem& p, PlanOptions&) { p.parameters[0].name = "v"; },
      [](Problem& p, PlanOptions&) {
        p.parameters[0].shape = {9, 8};
      },
      [](Problem& p, PlanOptions&) { p.parameters[0].dtype = Dtype::kBf16; },
      [](Problem& p, PlanOptions&) { p.parameters[0].grad_dtype = Dtype::kBf16; },
      [](Problem& p, PlanOptions&) { p.parameters[0].algorithm = Algorithm::kNorMuon; },
      [](Problem& p, PlanOptions&) { p.parameters[0].norm_axis = NormAxis::kRows; },
      [](Problem& p, PlanOptions&) { p.parameters[0].multiplier = 2; },
      [](Problem& p, PlanOptions&) { p.parameters[0].output_dim = 1; },
      [](Problem& p, PlanOptions&) { p.parameters[0].layout.placements = {Placement::shard(1)}; },
      [](Problem& p, PlanOptions&) {
        p.parameters[0].matrices.rows = {{4, {}, {}}, {4, {}, {}}};
      },
      [](Problem& p, PlanOptions&) { p.wire = Dtype::kF32; },
      [](Problem& p, PlanOptions&) { p.grad_sync = true; },
      [](Problem& p, PlanOptions&) { p.ranks = 5; },
      [](Problem& p, PlanOptions&) {
        p.meshes[0].ranks = {0, 1, 3, 2};
      },
      [](Problem& p, PlanOptions&) { p.meshes[0].axes[0].name = "dp"; },
      [](Problem&, PlanOptions& o) { o.cost = CostTable::cpu(); },
      [](Problem&, PlanOptions& o) { o.cost.message_ns += 1; },
      [](Problem&, PlanOptions& o) { o.strategy = Strategy::kChunked; },
      [](Problem&, PlanOptions& o) { o.wave_order = WaveOrder::kSmallLast; },
      [](Problem&, PlanOptions& o) { o.elementwise = ElementwiseOrder::kLast; },
      [](Problem&, PlanOptions& o) { o.elementwise = ElementwiseOrder::kFirst; },
      [](Problem&, PlanOptions& o) { o.scratch_bytes = 0; },
      [](Problem&, PlanOptions& o) { o.scratch_bytes = int64_t{2} << 30; },
  };
  std::set<uint64_t> seen;
  for (const auto& change : changes) {
    Problem problem = test::one_parameter({8, 8}, 4);
    PlanOptions options;
    change(problem, options);
    seen.insert(make_plan(problem, options).hash);
  }
  EXPECT_EQ(seen.size(), changes.size());
}

TEST(Hashes, ChangeWithWhoHasAnOwnerInEachReplica) {
  Problem problem = test::one_parameter({8, 8}, 4);
  test::replicate(problem);
  Plan plan = make_plan(problem, {});
  plan.each_replica.clear();
  const uint64_t once = plan_hash(problem, CostTable::h200(), plan);
  plan.each_replica = {true};
  EXPECT_NE(plan_hash(problem, CostTable::h200(), plan), once);
}

TEST(Hashes, ChangeWithTheWavesInFlight) {
  const Problem problem = test::preset("gpt2-small", "fsdp=2");
  PlanOptions options;
  options.waves = 4;
  for (auto p = static_cast<int32_t>(problem.parameters.size()); p-- > 0;) options.order.push_back(p);
  std::set<uint64_t> seen;
  for (const int32_t in_flight : {1, 2, 3}) {
    options.in_flight = in_flight;
    seen.insert(make_plan(problem, options).hash);
  }
  EXPECT_EQ(seen.size(), 3);
  options.in_flight = kAllInFlight;
  EXPECT_TRUE(seen.contains(make_plan(problem, options).hash));
}

TEST(Hashes, TellTheFirstParameterThatDiffers) {
  Problem mine = test::preset("gpt2-small", "fsdp=2");
  Problem theirs = mine;
  theirs.parameters[5].shape[0] += 1;
  const std::vector<uint64_t> a = parameter_fingerprints(mine);
  const std::vector<uint64_t> b = parameter_fingerprints(theirs);
  const auto differs = std::mismatch(a.begin(), a.end(), b.begin()).first - a.begin();
  EXPECT_EQ(differs, 5);
}

TEST(Hashes, TellParametersOnAnotherMesh) {
  const Problem mine = test::one_parameter({8, 8}, 4);
  Problem theirs = mine;
  theirs.meshes[0].ranks = {1, 0, 2, 3};
  EXPECT_NE(parameter_fingerprints(mine), parameter_fingerprints(theirs));
}

}  // namespace
}  // namespace muster::plan
