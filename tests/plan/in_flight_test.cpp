// How many waves are in flight: what that costs, when more are chosen, and what is refused.
#include <algorithm>
#include <deque>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/int128.h"
#include "muster/error.h"
#include "support/problems.h"
#include "support/random_problem.h"

namespace muster {
namespace {

using test::preset;
using testing::HasSubstr;

// Plays a step through, exchange by exchange: a network that carries one at a time in the order in which they are
// posted, and a device that computes wave after wave. A wave out is posted when it was computed.
int64_t played(const PlanSummary& summary, int32_t in_flight, int64_t overlap_percent) {
  struct Exchange {
    size_t wave;
    bool in;
  };
  const auto waves = static_cast<int32_t>(summary.waves.size());
  std::deque<Exchange> posted;
  for (int32_t w = 0; w < waves + in_flight; ++w) {
    if (w < waves) posted.push_back({static_cast<size_t>(w), true});
    if (w >= in_flight) posted.push_back({static_cast<size_t>(w - in_flight), false});
  }
  std::vector<int64_t> arrived(summary.waves.size());
  std::vector<int64_t> computed(summary.waves.size());
  int64_t network = 0;
  int64_t serial = 0;
  for (const Exchange& e : posted) {
    const PlanSummary::WaveTotal& wave = summary.waves[e.wave];
    if (e.in) {
      arrived[e.wave] = network += wave.in_ns;
      serial += wave.in_ns + wave.compute_ns + wave.out_ns;
      continue;
    }
    const int64_t before = e.wave == 0 ? 0 : computed[e.wave - 1];
    computed[e.wave] = std::max(before, arrived[e.wave]) + wave.compute_ns;
    network = std::max(network, computed[e.wave]) + wave.out_ns;
  }
  const int64_t end = std::max(network, computed.empty() ? 0 : computed.back());
  return end + base::mul_div(serial - end, 100 - overlap_percent, 100);
}

TEST(InFlight, IsPredictedAsItIsPlayed) {
  int several = 0;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    const test::RandomCase c = test::random_case(seed);
    try {
      const Plan plan = make_plan(c.problem, c.options);
      const PlanSummary summary = summarize(c.problem, plan, c.options.cost);
      EXPECT_EQ(summary.predicted_ns, played(summary, plan.in_flight, c.options.cost.overlap_percent)) << seed;
      several += plan.in_flight > 1;
    } catch (const InvalidArgument&) {
      continue;
    }
  }
  EXPECT_GT(several, 30);
}

// So many waves: in an order of parameters there are as many as are asked for.
PlanOptions in_order(const Problem& problem, int32_t waves) {
  PlanOptions options;
  options.waves = waves;
  for (auto p = static_cast<int32_t>(problem.parameters.size()); p-- > 0;) options.order.push_back(p);
  return options;
}

TEST(InFlight, IsWhatWasAskedForOrAllWaves) {
  const Problem problem = preset("gpt2-small", "fsdp=2");
  PlanOptions options = in_order(problem, 5);
  for (const auto& [asked, expected] : {std::pair{1, 1}, {2, 2}, {4, 4}, {5, 4}, {kAllInFlight, 4}}) {
    options.in_flight = asked;
    EXPECT_EQ(make_plan(problem, options).in_flight, expected);
  }
  options.waves = 1;
  EXPECT_EQ(make_plan(problem, options).in_flight, 1);
  options = {.in_flight = 2};
  for (const Strategy strategy : {Strategy::kPerMatrix, Strategy::kGrouped, Strategy::kRouted}) {
    options.strategy = strategy;
    EXPECT_EQ(make_plan(problem, options).in_flight, 2) << name(strategy);
  }
  options.in_flight = -1;
  EXPECT_THAT([&] { make_plan(problem, options); },
              testing::ThrowsMessage<InvalidArgument>(HasSubstr("in flight -1: expected at least 1")));
}

// The waves that are posted count, so a cap that one wave ahead keeps may be too small for two.
TEST(InFlight, KeepsTheScratchCap) {
  const Problem problem = preset("gpt2-small", "fsdp=4");
  PlanOptions options = in_order(problem, 8);
  options.scratch_bytes = 0;
  options.in_flight = 1;
  const int64_t one = summarize(problem, make_plan(problem, options), options.cost).scratch_bytes_max;
  options.in_flight = kAllInFlight;
  const int64_t all = summarize(problem, make_plan(problem, options), options.cost).scratch_bytes_max;
  EXPECT_GT(all, one);
  options.scratch_bytes = one;
  EXPECT_THAT(
      [&] { make_plan(problem, options); },
      testing::ThrowsMessage<InvalidArgument>(HasSubstr("with 8 waves, all in flight the least that works is")));
  options.in_flight = 0;
  const Plan chosen = make_plan(problem, options);
  EXPECT_LE(summarize(problem, chosen, options.cost).scratch_bytes_max, one);
}

// Unless they are asked for, more waves are in flight only where that is predicted to be faster.
TEST(InFlight, IsMoreWhereThatIsFaster) {
  int more = 0;
  for (uint64_t seed = 0; seed < 600; ++seed) {
    test::RandomCase c = test::random_case(seed);
    c.options.strategy = Strategy::kGlobal;
    c.options.scratch_bytes = 0;
    c.options.in_flight = 0;
    const Plan chosen = make_plan(c.problem, c.options);
    if (chosen.in_flight == 1) continue;
    ++more;
    Plan one = chosen;
    one.in_flight = 1;
    EXPECT_LT(summarize(c.problem, chosen, c.options.cost).predicted_ns,
              summarize(c.problem, one, c.options.cost).predicted_ns)
        << seed;
    // A cap that leaves no room for them is kept.
    c.options.scratch_bytes = summarize(c.problem, one, c.options.cost).scratch_bytes_max;
    const Plan capped = make_plan(c.problem, c.options);
    EXPECT_LE(summarize(c.problem, capped, c.options.cost).scratch_bytes_max, *c.options.scratch_bytes) << seed;
  }
  EXPECT_GT(more, 5);
}

// Waves that follow the order of the gradients start when these come: nothing is gained by waiting for later ones.
TEST(InFlight, IsOneWithAnOrderUnlessAskedFor) {
  const Problem problem = preset("gpt2-small", "fsdp=4");
  PlanOptions options = in_order(problem, 0);
  EXPECT_EQ(make_plan(problem, options).in_flight, 1);
  options.in_flight = 3;
  EXPECT_EQ(make_plan(problem, options).in_flight, 3);
}

}  // namespace
}  // namespace muster
