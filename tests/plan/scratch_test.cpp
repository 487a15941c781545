// The scratch of small plans, counted by hand; check_plan.cpp counts it for random ones from their messages.
#include <algorithm>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "muster/error.h"
#include "plan/catalog.h"
#include "support/problems.h"

namespace muster {
namespace {

constexpr int64_t kElements = 64 * 64;
constexpr int64_t kMessage = 64;  // what a message may take more than its bytes

// Of a square matrix with bf16 on the wire: that, the f32 result, the kernels' copies, Gram matrices or the cap's
// sketch of as many columns as the matrix has, up to 96, lines.
int64_t workspace(int64_t side, const CostTable& cost) {
  const int64_t n = side * side;
  const int64_t r = side == 1 ? 0 : std::min<int64_t>(96, (side + 31) / 32 * 32);
  const int64_t cap = 6 * r * side * cost.compute_bytes + r * r * (2 * side / 128 + 8) * 4;
  return 2 * n + 4 * n + 2 * n * cost.compute_bytes + std::max(4 * n * cost.compute_bytes, cap) + 2 * side * 16 + 4096;
}

// Layers of 64x64 matrices like the first, all owned by rank 0, in the waves given.
std::vector<int64_t> scratch(const Problem& problem, const std::vector<int32_t>& waves, int32_t in_flight = 1) {
  Plan plan = make_plan(problem, test::with(Strategy::kGlobal));
  std::fill(plan.owner.begin(), plan.owner.end(), 0);
  plan.wave = waves;
  plan.waves.assign(*std::max_element(waves.begin(), waves.end()) + 1, {});
  plan.in_flight = in_flight;
  std::vector<int64_t> out;
  for (const auto& rank : summarize(problem, plan, CostTable::h200()).ranks) out.push_back(rank.scratch_bytes);
  return out;
}

Parameter& add(Problem& problem, const char* name, Shape shape) {
  Parameter p = problem.parameters[0];
  p.name = name;
  p.shape = std::move(shape);
  problem.parameters.push_back(p);
  return problem.parameters.back();
}

TEST(Scratch, IsTheMatrixAndItsMessages) {
  const Problem problem = test::one_parameter({64, 64}, 2);
  const int64_t half = kElements / 2 * 2 + kMessage;
  EXPECT_EQ(scratch(problem, {0}),
            (std::vector<int64_t>{kElements * 2 + half + workspace(64, CostTable::h200()), half}));
}

// Every third wave lies where the last one did. Summing the largest three waves in a row gave one large and two small
// ones here, which no fixed slots can hold.
TEST(Scratch, IsThreeSlotsOfTheLargestWaves) {
  Problem problem = test::one_parameter({64, 64}, 2);
  for (const char* name : {"b", "c", "d", "e", "f", "g", "h", "i"}) add(problem, name, {2, 2});
  problem.parameters[4].shape = problem.parameters[8].shape = {64, 64};
  const int64_t half = kElements / 2 * 2 + kMessage;
  EXPECT_EQ(scratch(problem, {0, 1, 2, 3, 4, 5, 6, 7, 8}),
            (std::vector<int64_t>{3 * (kElements * 2 + half) + workspace(64, CostTable::h200()), 3 * half}));
}

// With n waves in flight 2 n + 1 are under way at once.
TEST(Scratch, HasASlotPerWaveThatIsUnderWay) {
  Problem problem = test::one_parameter({64, 64}, 2);
  for (const char* name : {"b", "c", "d", "e", "f", "g"}) add(problem, name, {64, 64});
  const std::vector<int32_t> waves{0, 1, 2, 3, 4, 5, 6};
  const int64_t half = kElements / 2 * 2 + kMessage;
  const int64_t wave = kElements * 2 + half;
  for (const auto& [in_flight, slots] : {std::pair{1, 3}, std::pair{2, 5}, std::pair{3, 7}, std::pair{6, 7}}) {
    EXPECT_EQ(scratch(problem, waves, in_flight),
              (std::vector<int64_t>{slots * wave + workspace(64, CostTable::h200()), slots * half}))
        << in_flight;
  }
}

TEST(Scratch, OfMatricesAtHomeIsTheWorkspaceAlone) {
  const Problem problem = test::one_parameter({8, 64, 64}, 1);
  EXPECT_EQ(scratch(problem, std::vector<int32_t>(8, 0)), std::vector<int64_t>{workspace(64, CostTable::h200())});
}

// The owner adds up f32 gradients beside the update, and sends the weights of two replicas once.
TEST(Scratch, HoldsSumsOverReplicas) {
  Problem problem = test::one_parameter({64, 64}, 3);
  problem.grad_sync = true;
  problem.parameters[0].layout.placements = {Placement::replicate()};
  problem.parameters[0].grad_dtype = Dtype::kF32;
  const int64_t gradients = 4 * kElements + kMessage;
  EXPECT_EQ(scratch(problem, {0}),
            (std::vector<int64_t>{(2 + 4) * kElements + 2 * gradients + workspace(64, CostTable::h200()), gradients,
                                  gradients}));
}

// One matrix lies on every rank of an axis, the other is cut over it.
Problem replicated_beside_sharded() {
  Problem problem = test::one_parameter({64, 64}, 4);
  problem.parameters[0].layout.placements = {Placement::replicate()};
  add(problem, "cut", {4, 4}).layout.placements = {Placement::shard(0)};
  return problem;
}

TEST(Scratch, HoldsMessagesToReplicasOnceUnlessTheyDiffer) {
  const Problem problem = replicated_beside_sharded();
  const int64_t fixed = kElements * 2 + workspace(64, CostTable::h200());
  const int64_t small = 64 + 3 * (4 * 2 + kMessage);
  // Apart, the three replicas get equal messages; together, each gets its row of the other matrix too.
  EXPECT_EQ(scratch(problem, {0, 1})[0], fixed + kElements * 2 + 3 * kMessage + small);
  EXPECT_EQ(scratch(problem, {0, 0})[0], fixed + 3 * kElements * 2 + small);
}

// In a reduction every holder sends its share of an elementwise parameter beside zeros of different length.
TEST(Scratch, HoldsEveryMessageOfAReduction) {
  Problem problem = test::one_parameter({5, 64}, 4);
  Parameter& table = add(problem, "table", {64, 64});
  table.layout.placements = {Placement::replicate()};
  table.algorithm = Algorithm::kAdamW;
  Plan plan = make_plan(problem, test::with(Strategy::kGlobal));
  plan.owner = {0};
  plan.wave = {0};
  plan.waves = {{Transport::kGatherReduce, {}}};
  ASSERT_EQ(plan.shares.size(), 1U);
  const std::vector<int64_t>& cuts = plan.shares[0].cuts;
  // Rank 1 holds two rows of the five. It gets as much back and sends the other three.
  const int64_t rows = (2 * 2 + 3) * 64 * 2;
  const int64_t mine = (cuts[2] - cuts[1]) * 4;
  const int64_t others = kElements * 4 - mine;
  EXPECT_EQ(summarize(problem, plan, CostTable::h200()).ranks[1].scratch_bytes,
            5 * 64 * 2 + rows + 3 * mine + others + 6 * kMessage);
}

TEST(Scratch, KnowsWhichReplicasAreAlike) {
  const Problem problem = replicated_beside_sharded();
  const plan::Catalog catalog(problem);
  const plan::Distributions whole = catalog.distribution(0);
  const plan::Distributions cut = catalog.distribution(1);
  EXPECT_TRUE(catalog.replicas_alike(whole, whole));
  EXPECT_TRUE(catalog.replicas_alike(cut, whole | cut));
  EXPECT_FALSE(catalog.replicas_alike(whole, whole | cut));
}

// Replicas of HSDP hold the same of everything, whichever way it is cut among them.
TEST(Scratch, TakesReplicasOfHsdpForAlike) {
  Problem problem = test::one_parameter({64, 64}, 6);
  problem.meshes = {{"world", {{"replicate", 2}, {"fsdp", 3}}, {}}};
  problem.parameters[0].layout.placements = {Placement::replicate(), Placement::shard(0)};
  add(problem, "columns", {8, 64}).layout.placements = {Placement::replicate(), Placement::shard(1)};
  add(problem, "few", {2, 8}).layout.placements = {Placement::replicate(), Placement::shard(0)};
  const plan::Catalog catalog(problem);
  const plan::Distributions all = catalog.distribution(0) | catalog.distribution(1) | catalog.distribution(2);
  EXPECT_EQ(catalog.distribution(0), catalog.distribution(1));
  EXPECT_NE(catalog.distribution(0), catalog.distribution(2));  // the third rank holds nothing of two rows
  EXPECT_TRUE(catalog.replicas_alike(all, all));
}

// A catalog tells 31 ways to lie over the ranks apart, and takes nothing for granted about the others.
TEST(Scratch, TakesNoReplicasForAlikeAmongTooManyLayouts) {
  Problem problem = test::one_parameter({4, 4}, 9);
  problem.meshes.clear();
  for (int32_t a = 0; a < 9; ++a) {
    for (int32_t b = a + 1; b < 9; ++b) {
      const std::string name = "on" + std::to_string(a) + std::to_string(b);
      Parameter& p = add(problem, name.c_str(), {4, 4});
      p.layout = {static_cast<int32_t>(problem.meshes.size()), {Placement::replicate()}, {}};
      problem.meshes.push_back({name, {{"pair", 2}}, {a, b}});
    }
  }
  problem.parameters.erase(problem.parameters.begin());
  const plan::Catalog catalog(problem);
  for (int32_t p = 0; p < 36; ++p) {
    EXPECT_EQ(catalog.replicas_alike(catalog.distribution(p), catalog.distribution(p)), p < 31) << p;
  }
}

// A default of 1 GiB refused models whose smallest plan takes more, and the least that the error named did not always
// work. With the least as the default, plans were hundreds of waves long.
TEST(ScratchCap, DefaultsToHalfMoreThanTheLeastThatTheModelNeeds) {
  for (const int32_t ranks : {1, 2, 3, 5}) {
    for (const int32_t waves : {0, 1, 2}) {
      for (const bool ordered : {false, true}) {
        Problem problem = test::one_parameter({10240, 10240}, ranks);
        add(problem, "b", {3, 8192, 9216});
        add(problem, "c", {11264, 4096});
        PlanOptions options;
        options.waves = waves;
        options.in_flight = ranks == 3 ? kAllInFlight : 0;
        if (ordered) options.order = {2, 0, 1};
        const Plan plan = make_plan(problem, options);
        const PlanSummary summary = summarize(problem, plan, options.cost);
        EXPECT_TRUE(plan.scratch_cap_raised);
        const int64_t least = (2 * plan.scratch_cap + 2) / 3;
        EXPECT_GT(least, kDefaultScratchBytes);
        EXPECT_EQ(plan.scratch_cap, least + least / 2);
        EXPECT_LE(summary.scratch_bytes_max, plan.scratch_cap);

        options.scratch_bytes = plan.scratch_cap;
        const Plan same = make_plan(problem, options);
        EXPECT_FALSE(same.scratch_cap_raised);
        EXPECT_EQ(same.hash, plan.hash) << ranks << " ranks, " << waves << " waves, ordered " << ordered;
        if (ordered) continue;  // other owners may do with less
        options.scratch_bytes = least;
        EXPECT_EQ(summarize(problem, make_plan(problem, options), options.cost).scratch_bytes_max, least);
        --*options.scratch_bytes;
        EXPECT_THROW(make_plan(problem, options), InvalidArgument);
      }
    }
  }
}

TEST(ScratchCap, IsTheDefaultWhereThatIsEnough) {
  const Problem problem = test::one_parameter({64, 64}, 2);
  const Plan plan = make_plan(problem, {});
  EXPECT_EQ(plan.scratch_cap, kDefaultScratchBytes);
  EXPECT_FALSE(plan.scratch_cap_raised);
  EXPECT_EQ(make_plan(problem, {.scratch_bytes = 0}).scratch_cap, 0);
  EXPECT_EQ(make_plan(problem, {.strategy = Strategy::kChunked}).scratch_cap, 0) << "only global keeps one";
}

TEST(ScratchCap, TooSmallIsAnErrorWithTheLeastThatWorks) {
  const Problem problem = test::one_parameter({2048, 2048}, 2);
  for (const int32_t waves : {0, 1}) {
    PlanOptions options{.waves = waves, .scratch_bytes = 1};
    std::string text;
    try {
      make_plan(problem, options);
    } catch (const InvalidArgument& error) {
      EXPECT_EQ(error.code(), ErrorCode::kScratchCapTooSmall);
      text = error.what();
    }
    const size_t at = text.find("least that works is ");
    ASSERT_NE(at, std::string::npos) << text;
    const int64_t least = std::stoll(text.substr(at + 20));
    options.scratch_bytes = least << 20;
    EXPECT_NO_THROW(make_plan(problem, options));
    options.scratch_bytes = (least - 1) << 20;
    EXPECT_THROW(make_plan(problem, options), InvalidArgument);
  }
}

}  // namespace
}  // namespace muster
