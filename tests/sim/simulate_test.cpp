// Small steps that can be worked out by hand, and what holds of all of them.
#include "sim/simulate.h"

#include <algorithm>
#include <string>

#include <gtest/gtest.h>

#include "muster/error.h"
#include "support/problems.h"
#include "support/random_problem.h"

namespace muster::sim {
namespace {

using test::one_parameter;
using test::preset;
using test::random_case;
using test::with;

// Round figures: a byte takes a nanosecond within a node and ten between nodes, memory is free, an operation takes a
// nanosecond, and whatever starts takes a round number.
Cluster simple_cluster() {
  Cluster c;
  c.name = "simple";
  c.source = "this test";
  c.cost.device = "simple";
  c.cost.rates = {{1, 1}};
  c.cost.batch_ns = 10'000;
  c.cost.exchange_ns = 1'000;
  c.cost.message_ns = 100;
  c.cost.memory_mbps = 1'000'000'000'000;
  c.cost.intra_node_mbps = 1'000;
  c.cost.inter_node_mbps = 100;
  c.cost.ranks_per_node = 8;
  c.cost.overlap_percent = 100;
  c.nics_per_node = 8;
  c.nic_mbps = 100;
  return c;
}

// 20 * 8 = 160 operations of a 2x2 matrix (15 l s^2 + 5 s^3), a batch's start, and nothing else that takes time.
constexpr int64_t kMatrixNs = 10'000 + 160;

Plan plan_of(const Problem& problem, const Cluster& cluster, Strategy strategy = Strategy::kGlobal) {
  PlanOptions options = with(strategy);
  options.cost = cluster.cost;
  return make_plan(problem, options);
}

// A row of 2 elements, 4 bytes, goes to the owner and comes back: 1000 + 100 + 4 each way.
TEST(Simulate, TwoRanksAndOneMatrixTakeInComputeAndOut) {
  const Problem problem = one_parameter({2, 2}, 2);
  const Cluster cluster = simple_cluster();
  const Simulation s = simulate(problem, plan_of(problem, cluster), cluster);
  EXPECT_EQ(s.step_ns, 1'104 + kMatrixNs + 1'104);
  EXPECT_EQ(s.compute_ns, kMatrixNs);
  EXPECT_EQ(s.exposed_comm_ns, 2'208);
  EXPECT_EQ(s.bytes_sent, 8);
  EXPECT_EQ(s.messages, 2);
  EXPECT_LE(s.bound_ns, s.step_ns);
  EXPECT_GE(s.bound_ns, kMatrixNs + 1'100);
}

TEST(Simulate, ALaunchIsPaidForEveryCallBesideTheBatches) {
  const Problem problem = one_parameter({2, 2}, 2);
  Cluster cluster = simple_cluster();
  cluster.cost.memory_mbps = 10;  // 2 elements: 28 bytes to pack, 20 to apply; 4 bytes are read and written to assemble
  cluster.launch_ns = 50;
  const Simulation s = simulate(problem, plan_of(problem, cluster), cluster);
  EXPECT_EQ(s.step_ns, 2'850 + 1'104 + 850 + kMatrixNs + 850 + 1'104 + 2'050);
}

TEST(Simulate, AMatrixThatStaysHomeExchangesNothing) {
  const Problem problem = one_parameter({2, 2}, 1);
  const Cluster cluster = simple_cluster();
  const Simulation s = simulate(problem, plan_of(problem, cluster), cluster);
  EXPECT_EQ(s.step_ns, kMatrixNs);
  EXPECT_EQ(s.exposed_comm_ns, 0);
  EXPECT_EQ(s.bound_ns, kMatrixNs);
}

// Three waves of one matrix each, whose exchanges take longer than their computation: with one wave in flight the
// network waits for wave 0 to be computed before it carries wave 2, with two it does not.
TEST(Simulate, MoreWavesInFlightKeepTheNetworkBusy) {
  Problem problem = one_parameter({2, 2}, 2);
  for (const char* name : {"b", "c"}) {
    problem.parameters.push_back(problem.parameters[0]);
    problem.parameters.back().name = name;
  }
  Cluster cluster = simple_cluster();
  cluster.cost.exchange_ns = 4'000;
  Plan plan = plan_of(problem, cluster);
  plan.owner = {0, 0, 0};
  plan.wave = {0, 1, 2};
  plan.waves.assign(3, {});
  constexpr int64_t kExchangeNs = 4'104;  // of one message of 4 bytes
  // Arrives, computes for longer than two exchanges, and so on: the stream is never idle after wave 0 has arrived.
  for (const int32_t in_flight : {1, 2}) {
    plan.in_flight = in_flight;
    const Simulation s = simulate(problem, plan, cluster, Keep::kTimeline);
    EXPECT_EQ(s.step_ns, kExchangeNs + 3 * kMatrixNs + kExchangeNs);
    EXPECT_EQ(s.messages, 6);
    std::vector<int64_t> in;
    for (const Span& span : s.timeline[0]) {
      if (span.stream == Stream::kExchange && span.label == "in") in.push_back(span.begin_ns);
    }
    // Wave 2 is posted when wave 0 was computed, or at once.
    const int64_t third = in_flight == 1 ? kExchangeNs + kMatrixNs + kExchangeNs : 2 * kExchangeNs;
    EXPECT_EQ(in, (std::vector<int64_t>{0, kExchangeNs, third}));
  }
}

TEST(Simulate, ASlowLinkBetweenNodesSetsThePace) {
  const Problem problem = one_parameter({2, 2}, 2);
  Cluster cluster = simple_cluster();
  cluster.cost.ranks_per_node = 1;
  cluster.nics_per_node = 1;
  const Simulation s = simulate(problem, plan_of(problem, cluster), cluster);
  EXPECT_EQ(s.step_ns, 1'140 + kMatrixNs + 1'140);
}

// Two nodes of two ranks, two matrices, both owners on the first node: two rows of 8 bytes come from the other node to
// each of them, over an adapter of its own or over one for both.
TEST(Simulate, RanksThatShareAnAdapterTakeTurns) {
  Problem problem = one_parameter({4, 4}, 4);
  problem.parameters.push_back(problem.parameters[0]);
  problem.parameters[1].name = "v";
  Cluster cluster = simple_cluster();
  cluster.cost.ranks_per_node = 2;
  cluster.nics_per_node = 2;
  Plan plan = plan_of(problem, cluster);
  plan.owner = {0, 1};
  plan.wave = {0, 0};
  plan.waves = {{}};
  const int64_t alone = simulate(problem, plan, cluster).step_ns;
  cluster.nics_per_node = 1;
  EXPECT_EQ(simulate(problem, plan, cluster).step_ns, alone + 2 * 160);
}

// Two matrices in two waves, owned by rank 0 both: the second arrives while the first is computed, and the first leaves
// while the second is.
class TwoWaves : public testing::Test {
 protected:
  TwoWaves() : problem_(one_parameter({2, 2}, 2)), cluster_(simple_cluster()) {
    problem_.parameters.push_back(problem_.parameters[0]);
    problem_.parameters[1].name = "v";
    plan_ = plan_of(problem_, cluster_);
    plan_.owner = {0, 0};
    plan_.wave = {0, 1};
    plan_.waves = {{}, {}};
  }
  Problem problem_;
  Cluster cluster_;
  Plan plan_;
};

TEST_F(TwoWaves, Overlap) {
  const Simulation s = simulate(problem_, plan_, cluster_, Keep::kTimeline);
  EXPECT_EQ(s.step_ns, 1'104 + 2 * kMatrixNs + 1'104);
  ASSERT_EQ(s.timeline.size(), 2U);
  std::vector<std::string> seen;
  for (const Span& span : s.timeline[0]) {
    seen.push_back(std::string(span.label) + " " + std::to_string(span.wave) + ": " + std::to_string(span.begin_ns) +
                   "-" + std::to_string(span.end_ns));
  }
  std::sort(seen.begin(), seen.end());
  EXPECT_EQ(seen,
            (std::vector<std::string>{"in 0: 0-1104", "in 1: 1104-2208", "orthogonalize 0: 1104-11264",
                                      "orthogonalize 1: 11264-21424", "out 0: 11264-12368", "out 1: 21424-22528"}));
}

// A fifth of what could be hidden is not: of in 1 and of out 0.
TEST_F(TwoWaves, OverlapAsFarAsTheCostTableAllows) {
  cluster_.cost.overlap_percent = 80;
  const int64_t slowed = (1'104 * 120 + 99) / 100;
  EXPECT_EQ(simulate(problem_, plan_, cluster_).step_ns, 1'104 + 2 * kMatrixNs + 2 * (slowed - 1'104) + 1'104);
  cluster_.cost.overlap_percent = 0;
  EXPECT_EQ(simulate(problem_, plan_, cluster_).step_ns, 4 * 1'104 + 2 * kMatrixNs);
}

TEST_F(TwoWaves, RanksWaitForTheSlowest) {
  plan_.owner = {0, 1};
  plan_.wave = {0, 0};
  plan_.waves = {{}};
  // Both compute beside each other; a rank that has four times the rest to do would hold up the other's way back.
  const int64_t together = simulate(problem_, plan_, cluster_).step_ns;
  EXPECT_EQ(together, 1'104 + kMatrixNs + 1'104);
  problem_.parameters[1].shape = {4, 2};
  plan_ = plan_of(problem_, cluster_);
  plan_.owner = {0, 1};
  plan_.wave = {0, 0};
  plan_.waves = {{}};
  const Simulation s = simulate(problem_, plan_, cluster_, Keep::kTimeline);
  for (const std::vector<Span>& rank : s.timeline) {
    for (const Span& span : rank) {
      if (span.stream == Stream::kCompute) continue;
      EXPECT_EQ(span.end_ns == s.step_ns, span.label == "out");
    }
  }
}

// Every random problem, on clusters of every kind.
Cluster random_cluster(uint64_t seed) {
  Cluster c = simple_cluster();
  c.cost.rates = {{4, 1 + static_cast<int64_t>(seed % 3)}, {64, 5}};
  c.cost.memory_mbps = 100 + static_cast<int64_t>(seed * 7919 % 10'000);
  c.cost.ranks_per_node = 1 + static_cast<int32_t>(seed % 5);
  c.nics_per_node = 1 + static_cast<int32_t>(seed / 5 % 4);
  c.cost.overlap_percent = static_cast<int64_t>(seed * 31 % 101);
  c.cost.exchange_ns = static_cast<int64_t>(seed * 53 % 3'000);
  c.launch_ns = static_cast<int64_t>(seed % 2 * 20);
  return c;
}

TEST(Simulate, MovesThePlansBytesAndIsNeverFasterThanTheBound) {
  int planned = 0;
  for (uint64_t seed = 0; seed < 1'500; ++seed) {
    const test::RandomCase c = random_case(seed);
    const Cluster cluster = random_cluster(seed);
    for (const Strategy strategy : all_strategies()) {
      Plan plan;
      try {
        plan = plan_of(c.problem, cluster, strategy);
      } catch (const InvalidArgument&) {
        continue;
      }
      ++planned;
      const auto most = std::max<int64_t>(1, static_cast<int64_t>(plan.waves.size()) - 1);
      plan.in_flight = static_cast<int32_t>(std::min<int64_t>(1 + static_cast<int64_t>(seed % 4), most));
      const Simulation s = simulate(c.problem, plan, cluster);
      const PlanSummary summary = summarize(c.problem, plan, cluster.cost);
      int64_t messages = 0;
      for (const PlanSummary::Rank& rank : summary.ranks) messages += rank.messages_sent;
      ASSERT_EQ(s.bytes_sent, summary.bytes_sent_total) << "seed " << seed << " " << name(strategy);
      ASSERT_EQ(s.messages, messages) << "seed " << seed << " " << name(strategy);
      ASSERT_EQ(s.scratch_bytes_max, summary.scratch_bytes_max) << "seed " << seed << " " << name(strategy);
      // Shares of a stream are rounded down, each by less than a nanosecond a wave.
      const auto rounding = static_cast<int64_t>(plan.shares.size() * plan.waves.size());
      ASSERT_LE(s.bound_ns, s.step_ns + rounding) << "seed " << seed << " " << name(strategy);
      ASSERT_GE(s.step_ns, s.compute_ns) << "seed " << seed << " " << name(strategy);
    }
  }
  EXPECT_GT(planned, 8'000);
}

// A better machine is never slower on the same plan. (Less to wait for on one rank could delay another's exchange in
// general; with everything posted in one order it does not.)
TEST(Simulate, IsMonotonicInWhatThingsCost) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const test::RandomCase c = random_case(seed);
    const Cluster cluster = random_cluster(seed);
    PlanOptions options = with(Strategy::kGlobal);
    options.cost = cluster.cost;
    const Plan plan = make_plan(c.problem, options);
    const int64_t step = simulate(c.problem, plan, cluster).step_ns;
    const auto with_change = [&](auto change) {
      Cluster other = cluster;
      change(other);
      return simulate(c.problem, plan, other).step_ns;
    };
    EXPECT_LE(step, with_change([](Cluster& o) { o.cost.exchange_ns += 500; })) << seed;
    EXPECT_LE(step, with_change([](Cluster& o) { o.cost.message_ns *= 2; })) << seed;
    EXPECT_LE(step, with_change([](Cluster& o) { o.nic_mbps /= 2; })) << seed;
    EXPECT_LE(step, with_change([](Cluster& o) { o.cost.intra_node_mbps /= 2; })) << seed;
    EXPECT_LE(step, with_change([](Cluster& o) { o.cost.batch_ns *= 2; })) << seed;
    EXPECT_LE(step, with_change([](Cluster& o) { o.launch_ns += 100; })) << seed;
  }
}

TEST(Simulate, KeepsSpansOfAStreamApartAndWithinTheStep) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const test::RandomCase c = random_case(seed);
    const Cluster cluster = random_cluster(seed);
    const Simulation s = simulate(c.problem, plan_of(c.problem, cluster), cluster, Keep::kTimeline);
    ASSERT_EQ(s.timeline.size(), static_cast<size_t>(c.problem.ranks));
    for (const std::vector<Span>& rank : s.timeline) {
      for (const Stream stream : {Stream::kCompute, Stream::kExchange}) {
        int64_t before = 0;
        for (const Span& span : rank) {
          if (span.stream != stream) continue;
          ASSERT_GE(span.begin_ns, before) << seed;
          ASSERT_GE(span.end_ns, span.begin_ns) << seed;
          ASSERT_LE(span.end_ns, s.step_ns) << seed;
          before = span.end_ns;
        }
      }
    }
  }
}

TEST(Simulate, ReplaysTheLargestModelOnFourThousandRanks) {
  const Problem problem = preset("moe-397b", "fsdp=4096");
  const Cluster cluster = Cluster::load("h100-ib", "");
  PlanOptions options;
  options.cost = cluster.cost;
  options.scratch_bytes = int64_t{4} << 30;
  const Simulation s = simulate(problem, make_plan(problem, options), cluster);
  EXPECT_GE(s.step_ns, s.bound_ns);
  EXPECT_TRUE(s.fits);
  EXPECT_LE(s.scratch_bytes_max, *options.scratch_bytes);
}

// What the public change reports: the padded baseline runs out of 80 GB, its own paths do not.
TEST(Simulate, ThePaddedBaselineDoesNotFitWhereItRanOutOfMemory) {
  const Problem problem = preset("moe-397b", "fsdp=128");
  const Cluster cluster = Cluster::load("h100-ib", "");
  EXPECT_FALSE(simulate(problem, plan_of(problem, cluster, Strategy::kChunked), cluster).fits);
  EXPECT_TRUE(simulate(problem, plan_of(problem, cluster, Strategy::kRouted), cluster).fits);
  EXPECT_TRUE(simulate(problem, plan_of(problem, cluster, Strategy::kGlobal), cluster).fits);
}

// xtuner before #1716 pads every batch with a weight, a gradient and a momentum per missing tensor. One matrix of 4 x 2
// on 4 ranks lacks 3: a rank holds 2 elements of each, of 4 bytes; launches, then 12 bytes of zeros, 14 for momentum
// and 10 to apply per element, at 10 bytes per microsecond.
TEST(Simulate, CountsTheTensorsThatPaddingCreates) {
  const Problem problem = one_parameter({4, 2}, 4);
  Cluster cluster = simple_cluster();
  cluster.launch_ns = 50;
  cluster.cost.memory_mbps = 10;
  const Padding padding = simulate(problem, plan_of(problem, cluster, Strategy::kChunked), cluster).padding;
  EXPECT_EQ(padding.tensors, 9);
  EXPECT_EQ(padding.bytes, 3 * 2 * 12);
  EXPECT_EQ(padding.ns, 9 * 50 + 3 * 2 * (12 + 14 + 10) * 100);
  EXPECT_EQ(simulate(problem, plan_of(problem, cluster), cluster).padding.tensors, 0);
}

// Experts are padded as one tensor each layer: 60 layers on W ranks lack W - 60 of each of their shapes. What a rank
// holds of them is bounded, because its shard of each shrinks; their number grows with the ranks.
TEST(Simulate, PaddingGrowsWithTheRanksInTensorsAndIsBoundedInBytes) {
  const Cluster cluster = Cluster::load("h100-ib", "");
  const auto on = [&](const char* mesh) {
    const Problem problem = preset("moe-397b", mesh);
    return simulate(problem, plan_of(problem, cluster, Strategy::kChunked), cluster);
  };
  const Simulation few = on("fsdp=128");
  const Simulation twice = on("fsdp=256");
  const Simulation many = on("fsdp=512");
  EXPECT_EQ(many.padding.tensors - twice.padding.tensors, 2 * (twice.padding.tensors - few.padding.tensors));
  EXPECT_GT(many.padding.tensors, 3 * few.padding.tensors);
  EXPECT_GT(many.padding.bytes, few.padding.bytes);
  EXPECT_LT(many.padding.bytes, 2 * few.padding.bytes);
  EXPECT_GT(many.padding.ns, few.padding.ns);
}

// With EP 8, dense weights are replicas on 16 ranks each, and #1716 orthogonalizes all of them in each: it measured
// 1019 ms against 491 without EP.
TEST(Simulate, ExpertParallelismSlowsTheRoutedPathsAsPublished) {
  const Cluster cluster = Cluster::load("h100-ib", "");
  const auto step = [&](const char* mesh, Strategy strategy) {
    const Problem problem = preset("moe-397b", mesh);
    return static_cast<double>(simulate(problem, plan_of(problem, cluster, strategy), cluster).step_ns);
  };
  EXPECT_GT(step("fsdp=16,ep=8", Strategy::kRouted), 1.5 * step("fsdp=128", Strategy::kRouted));
  EXPECT_LT(step("fsdp=16,ep=8", Strategy::kGlobal), 1.2 * step("fsdp=128", Strategy::kGlobal));
}

// 12 x 10 over 2 ranks: 60 elements each of f32 weights and gradients and f32 momentum; 12 mean squares of rows at the
// owner; and the scratch.
TEST(Simulate, CountsWeightsGradientsStateAndScratch) {
  const Problem problem = one_parameter({12, 10}, 2, Algorithm::kNorMuon);
  const Cluster cluster = simple_cluster();
  const Simulation s = simulate(problem, plan_of(problem, cluster), cluster);
  EXPECT_EQ(s.memory_bytes_max - s.scratch_bytes_max, 60 * (4 + 4 + 4) + 12 * 4);
}

TEST(Simulate, RefusesAPlanOfAnotherProblem) {
  const Cluster cluster = simple_cluster();
  const Plan plan = plan_of(one_parameter({2, 2}, 2), cluster);
  EXPECT_THROW(simulate(test::two_parameters(2, Algorithm::kMuon), plan, cluster), InvalidArgument);
}

}  // namespace
}  // namespace muster::sim
