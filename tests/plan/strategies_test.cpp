#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/error.h"
#include "support/problems.h"

namespace muster {
namespace {

using test::preset;
using test::with;
using testing::HasSubstr;

PlanSummary summary(const Problem& problem, const PlanOptions& options) {
  return summarize(problem, make_plan(problem, options), options.cost);
}

// microsoft/dion #28: 36 rounds become 3. One global exchange needs neither.
TEST(Strategies, RoundsOfGpt2OnTwoRanks) {
  const Problem problem = preset("gpt2-small", "fsdp=2");
  EXPECT_EQ(summary(problem, with(Strategy::kPerMatrix)).rounds, 72);
  const PlanSummary chunked = summary(problem, with(Strategy::kChunked));
  EXPECT_EQ(chunked.rounds, 36);
  EXPECT_EQ(chunked.collectives, 72);
  const PlanSummary megabatch = summary(problem, with(Strategy::kMegabatch));
  EXPECT_EQ(megabatch.rounds, 3);
  EXPECT_EQ(megabatch.collectives, 6);
  PlanOptions one_wave;
  one_wave.waves = 1;
  const PlanSummary global = summary(problem, one_wave);
  EXPECT_EQ(global.rounds, 1);
  EXPECT_EQ(global.collectives, 2);
  EXPECT_EQ(global.padding_bytes, 0);
}

TEST(Strategies, MegabatchPadsToTheRanksAndGlobalNever) {
  const Problem problem = preset("gpt2-small", "fsdp=5");
  // 2 zero matrices of 768x768 and 3 of each rectangle, and every shard of 768 rows padded from 152 to 154.
  const Plan plan = make_plan(problem, with(Strategy::kMegabatch));
  std::vector<size_t> zeros;
  for (const Wave& wave : plan.waves) zeros.push_back(wave.zeros.size());
  EXPECT_THAT(zeros, testing::ElementsAre(2, 3, 3));
  EXPECT_GT(summary(problem, with(Strategy::kMegabatch)).padding_bytes, 0);
  EXPECT_EQ(summary(problem, with(Strategy::kGlobal)).padding_bytes, 0);
}

// modded-nanogpt #132: groups of 1, 10, 16 and 16 parameters on 8 ranks, padded by 7 and by 6.
TEST(Strategies, GroupedPadsWholeParametersAndKeepsKindsApart) {
  const Problem problem = preset("modded-nanogpt", "replicate=8");
  const Plan plan = make_plan(problem, with(Strategy::kGrouped));
  std::vector<size_t> zeros;
  for (const Wave& wave : plan.waves) zeros.push_back(wave.zeros.size());
  // The first round is AdamW's alone.
  EXPECT_THAT(zeros, testing::ElementsAre(0, 7, 6, 0, 0));

  // The fourth round: two attention parameters of four matrices on each of ranks 0 to 4, two MLP ones on ranks 5 to 7.
  std::vector<int> matrices(8);
  for (size_t j = 0; j < plan.owner.size(); ++j) matrices[plan.owner[j]] += plan.wave[j] == 3;
  EXPECT_THAT(matrices, testing::ElementsAre(8, 8, 8, 8, 8, 2, 2, 2));

  Problem mixed = problem;
  mixed.group_sizes = {1, 10, 15, 17};
  EXPECT_NO_THROW(make_plan(mixed, with(Strategy::kGrouped)));
  mixed.group_sizes = {11, 16, 16};
  EXPECT_THROW(make_plan(mixed, with(Strategy::kGrouped)), InvalidArgument);
  mixed.group_sizes = {1, 10, 16};
  EXPECT_THROW(make_plan(mixed, with(Strategy::kGrouped)), InvalidArgument);
}

// modded-nanogpt #132: all of reduce_scatter is posted before anything is computed, small parameters first.
TEST(Strategies, GroupedPostsAllFirstAndLetsElementsLead) {
  const Problem problem = preset("modded-nanogpt", "replicate=8");
  const Plan plan = make_plan(problem, with(Strategy::kGrouped));
  EXPECT_EQ(plan.in_flight, 4);
  const PlanSummary s = summarize(problem, plan, CostTable::h200());
  ASSERT_EQ(s.waves.size(), 5U);
  EXPECT_EQ(s.waves[0].matrices, 0);
  int64_t table_bytes = 0;  // f32 gradients would be four; these tables have bf16 ones
  for (const Parameter& p : problem.parameters) {
    if (p.algorithm == Algorithm::kAdamW) table_bytes += element_count(p.shape) * byte_size(p.grad_dtype);
  }
  EXPECT_EQ(s.waves[0].bytes_in, 7 * table_bytes);  // every element to the rank that updates it, from seven others
  for (size_t w = 2; w < s.waves.size(); ++w) EXPECT_GE(s.waves[w].bytes_in, s.waves[w - 1].bytes_in);
  // Where nothing of AdamW travels there is no round for it.
  EXPECT_GT(summary(preset("gpt2-small", "fsdp=2"), with(Strategy::kGrouped)).waves[0].matrices, 0);
}

// The slower variant of #132: ranks 0 and 1 own attention alone, rank 2 both kinds, the others MLP alone.
TEST(Strategies, GroupedMixesKindsIfAskedTo) {
  const Problem problem = preset("modded-nanogpt", "replicate=8");
  PlanOptions options = with(Strategy::kGrouped);
  options.groups = {1, 10, 32};
  EXPECT_THAT([&] { make_plan(problem, options); },
              testing::ThrowsMessage<InvalidArgument>(HasSubstr("in the group of 32; mixed groups allow that")));
  options.mixed_groups = true;
  const Plan plan = make_plan(problem, options);
  std::vector<int> matrices(8);
  for (size_t j = 0; j < plan.owner.size(); ++j) matrices[plan.owner[j]] += plan.wave[j] == 3;
  EXPECT_THAT(matrices, testing::ElementsAre(16, 16, 10, 4, 4, 4, 4, 4));
  const PlanSummary mixed = summarize(problem, plan, options.cost);
  EXPECT_EQ(mixed.rounds, 4);
  EXPECT_EQ(mixed.padding_bytes, summary(problem, with(Strategy::kGrouped)).padding_bytes);
  options.groups.clear();
  options.strategy = Strategy::kMegabatch;
  EXPECT_THAT([&] { make_plan(problem, options); },
              testing::ThrowsMessage<InvalidArgument>("mixed groups: is for strategy grouped, not megabatch"));
}

TEST(Strategies, GroupsOfTheOptionsReplaceThoseOfTheProblem) {
  const Problem problem = preset("modded-nanogpt", "replicate=8");
  PlanOptions options = with(Strategy::kGrouped);
  options.groups = {1, 10, 15, 17};
  Problem same = problem;
  same.group_sizes = options.groups;
  EXPECT_EQ(make_plan(problem, options).hash, make_plan(same, with(Strategy::kGrouped)).hash);
  options.groups = {1, 10, 16};
  EXPECT_THAT([&] { make_plan(problem, options); },
              testing::ThrowsMessage<InvalidArgument>(HasSubstr("groups [1,10,16] do not sum to the 43")));
  options.groups = {1, 0};
  EXPECT_THAT([&] { make_plan(problem, options); }, testing::ThrowsMessage<InvalidArgument>("groups: size 0"));
  options.groups = {1, 2};
  options.strategy = Strategy::kGlobal;
  EXPECT_THAT([&] { make_plan(problem, options); },
              testing::ThrowsMessage<InvalidArgument>("groups [1,2]: is for strategy grouped, not global"));
}

Problem experts(int64_t count, int64_t rows, int32_t fsdp, Placement placement, int layers = 1) {
  Problem problem = test::one_parameter({count, rows, 8}, fsdp);
  problem.parameters[0].layout.placements = {std::move(placement)};
  for (int layer = 1; layer < layers; ++layer) {
    problem.parameters.push_back(problem.parameters[0]);
    problem.parameters.back().name += std::to_string(layer);
  }
  return problem;
}

// xtuner #1716's six paths, each with its condition.
TEST(Strategies, RoutedTakesEachOfThePeersSixPaths) {
  auto transports = [](const Problem& problem) {
    std::vector<Transport> out;
    for (const Wave& wave : make_plan(problem, with(Strategy::kRouted)).waves) out.push_back(wave.transport);
    return out;
  };
  // Whole experts on every rank: nothing moves.
  const Problem whole = experts(8, 6, 4, Placement::shard(0));
  EXPECT_THAT(transports(whole), testing::ElementsAre(Transport::kRagged));
  EXPECT_EQ(summary(whole, with(Strategy::kRouted)).bytes_sent_total, 0);
  // Two ranks an expert: gathered within each pair, nothing returns.
  const Problem pairs = experts(4, 6, 8, Placement::flat());
  EXPECT_THAT(transports(pairs), testing::ElementsAre(Transport::kGather));
  EXPECT_EQ(summary(pairs, with(Strategy::kRouted)).waves[0].bytes_out, 0);
  // A full round, evenly and unevenly sharded.
  EXPECT_THAT(transports(experts(4, 8, 4, Placement::shard(1))), testing::ElementsAre(Transport::kRagged));
  EXPECT_THAT(transports(experts(4, 7, 4, Placement::shard(1))), testing::ElementsAre(Transport::kPadded));
  // A remainder: gathered everywhere and summed with zeros, or padded with zero matrices.
  const Problem rest = experts(6, 8, 4, Placement::shard(1));
  EXPECT_THAT(transports(rest), testing::ElementsAre(Transport::kRagged, Transport::kGatherReduce));
  EXPECT_GT(summary(rest, with(Strategy::kRouted)).padding_bytes, 0);
  EXPECT_THAT(transports(experts(6, 7, 4, Placement::shard(1))),
              testing::ElementsAre(Transport::kPadded, Transport::kPadded));
}

// xtuner #1716's process groups are those of the axis that shards: with EP, weights that the experts' axis does not cut
// are replicas, and each of them goes through all rounds by itself. One owner for all replicas had a quarter of the
// rounds and an eighth of the traffic between nodes.
TEST(Strategies, RoutedWorksInEachReplica) {
  Problem problem = experts(6, 8, 4, Placement::shard(1));
  problem.ranks = 8;
  problem.meshes = {{"world", {{"fsdp", 4}, {"ep", 2}}, {}}};
  problem.parameters[0].layout.placements = {Placement::shard(1), Placement::replicate()};
  const Plan plan = make_plan(problem, with(Strategy::kRouted));
  EXPECT_THAT(plan.owner, testing::ElementsAre(0, 2, 4, 6, 0, 2));
  EXPECT_THAT(plan.each_replica, testing::Each(true));
  ASSERT_EQ(plan.waves.size(), 2U);
  EXPECT_EQ(plan.waves[0].transport, Transport::kRagged);
  EXPECT_EQ(plan.waves[1].transport, Transport::kGatherReduce);
  // In each replica what one replica alone sends, and as many matrices for each rank.
  const PlanSummary one = summary(experts(6, 8, 4, Placement::shard(1)), with(Strategy::kRouted));
  const PlanSummary both = summary(problem, with(Strategy::kRouted));
  EXPECT_EQ(both.bytes_sent_total, 2 * one.bytes_sent_total);
  EXPECT_EQ(both.padding_bytes, 2 * one.padding_bytes);
  for (size_t r = 0; r < 8; ++r) EXPECT_EQ(both.ranks[r].bytes_sent, one.ranks[r / 2].bytes_sent);
  // A replica pads its own rounds.
  problem.parameters[0].shape[1] = 7;
  const Plan uneven = make_plan(problem, with(Strategy::kRouted));
  EXPECT_EQ(uneven.waves[1].transport, Transport::kPadded);
  ASSERT_EQ(uneven.waves[1].zeros.size(), 2U);
  EXPECT_EQ(uneven.waves[1].zeros[1].owner, 6);
}

// 6 experts on 4 ranks: two each on the first three. xtuner #1716 has no path for that and gathers them all as one
// tensor: a layer on each of the ranks that hold any.
TEST(Strategies, RoutedGathersExpertsThatDoNotDivideAsOneTensor) {
  const Plan plan = make_plan(experts(6, 8, 4, Placement::shard(0), 2), with(Strategy::kRouted));
  EXPECT_THAT(plan.owner, testing::ElementsAre(0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1));
  ASSERT_EQ(plan.waves.size(), 1U);
  EXPECT_EQ(plan.waves[0].transport, Transport::kPadded);
  ASSERT_EQ(plan.waves[0].zeros.size(), 6U);
  for (const ZeroMatrix& zero : plan.waves[0].zeros) EXPECT_EQ(zero.owner, 2);
}

// Before #1716 it did so with all experts. Where a first axis cuts them, its groups of ranks do so each for itself.
TEST(Strategies, ChunkedGathersExpertsAsOneTensor) {
  Problem problem = experts(8, 8, 4, Placement::shard(0));
  const Plan whole = make_plan(problem, with(Strategy::kChunked));
  EXPECT_THAT(whole.owner, testing::Each(0));
  EXPECT_EQ(whole.waves[0].zeros.size(), 3U * 8);
  // Of 8 experts of 64 elements the owner lacks 6, and each of the zero tensors 6, too; in and out, 2 bytes each.
  EXPECT_EQ(summary(problem, with(Strategy::kChunked)).bytes_sent_total, 4 * 6 * 64 * 2 * 2);
  problem.meshes = {{"world", {{"ep", 2}, {"fsdp", 2}}, {}}};
  problem.parameters[0].layout.placements = {Placement::shard(0), Placement::shard(0)};
  EXPECT_THAT(make_plan(problem, with(Strategy::kChunked)).owner, testing::ElementsAre(0, 0, 0, 0, 2, 2, 2, 2));
}

TEST(Strategies, RoutedAssertsThatExpertsDivideOverTheFirstAxis) {
  const Problem problem = preset("moe-397b", "fsdp=2,ep=7");
  try {
    make_plan(problem, with(Strategy::kRouted));
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("512 experts do not divide over ep=7"));
  }
  EXPECT_NO_THROW(make_plan(problem, with(Strategy::kGlobal)));
}

TEST(Strategies, LayerwiseKeepsParametersWhole) {
  const Problem problem = preset("modded-nanogpt", "replicate=8");
  const Plan plan = make_plan(problem, with(Strategy::kLayerwise));
  EXPECT_EQ(plan.waves.size(), 1U);
  // Matrices 11 to 50 are ten attention parameters of four.
  for (size_t j = 11; j < 51; ++j) EXPECT_EQ(plan.owner[j], plan.owner[11 + (j - 11) / 4 * 4]);
}

TEST(Strategies, EveryOneKnowsItsName) {
  for (const Strategy strategy : all_strategies()) EXPECT_EQ(parse_strategy(name(strategy)), strategy);
  EXPECT_EQ(all_strategies().size(), 7U);
}

}  // namespace
}  // namespace muster
