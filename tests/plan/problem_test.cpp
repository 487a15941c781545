#include "muster/problem.h"

#include <functional>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/error.h"
#include "support/problems.h"

namespace muster {
namespace {

using testing::HasSubstr;

struct Bad {
  const char* what;
  std::function<void(Problem&)> spoil;
  const char* message;
};

class BadProblems : public testing::TestWithParam<Bad> {};

TEST_P(BadProblems, AreNamedWithTheirValueInOneLine) {
  Problem problem = test::one_parameter({8, 4}, 4);
  GetParam().spoil(problem);
  for (const bool planning : {false, true}) {
    try {
      planning ? void(make_plan(problem, {})) : validate(problem);
      FAIL() << "accepted";
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), HasSubstr(GetParam().message));
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Problems, BadProblems,
    testing::Values(
        Bad{"ZeroDim",
            [](Problem& p) {
              p.parameters[0].shape = {8, 0};
            },
            "parameter 'w': shape [8,0] has dim 0"},
        Bad{"NegativeDim",
            [](Problem& p) {
              p.parameters[0].shape = {-8, 4};
            },
            "shape [-8,4] has dim -8"},
        Bad{"NoDims", [](Problem& p) { p.parameters[0].shape = {}; }, "'w': 0 dims"},
        Bad{"TooManyDims", [](Problem& p) { p.parameters[0].shape.assign(9, 1); }, "'w': 9 dims"},
        Bad{"Overflow",
            [](Problem& p) {
              p.parameters[0].shape = {INT64_MAX, INT64_MAX};
            },
            "more than 2^48 elements"},
        Bad{"TooLargeAModel",
            [](Problem& p) {
              p.parameters[0].shape = {int64_t{1} << 24, int64_t{1} << 24};
              p.parameters.push_back(p.parameters[0]);
              p.parameters[1].name = "v";
            },
            "'v' brings the model past 2^48 elements"},
        Bad{"AxisTwice",
            [](Problem& p) {
              p.meshes[0].axes = {{"fsdp", 2}, {"fsdp", 2}};
            },
            "axis 'fsdp' is named twice"},
        Bad{"AxisSizeZero", [](Problem& p) { p.meshes[0].axes[0].size = 0; }, "axis 'fsdp' has size 0"},
        Bad{"RankTwice",
            [](Problem& p) {
              p.meshes[0].ranks = {0, 1, 1, 2};
            },
            "mesh 'world': rank 1 is in it twice"},
        Bad{"RankOutside",
            [](Problem& p) {
              p.meshes[0].ranks = {0, 1, 2, 4};
            },
            "rank 4 is not one of the 4 ranks"},
        Bad{"TooFewRanks",
            [](Problem& p) {
              p.meshes[0].ranks = {0, 1};
            },
            "2 ranks for a grid of 4 positions"},
        Bad{"MeshLargerThanTheWorld", [](Problem& p) { p.ranks = 3; }, "4 positions on 3 ranks"},
        Bad{"NoRanks", [](Problem& p) { p.ranks = 0; }, "0 ranks"},
        Bad{"MeshTwice", [](Problem& p) { p.meshes.push_back(p.meshes[0]); }, "mesh 'world' is named twice"},
        Bad{"NoSuchMesh", [](Problem& p) { p.parameters[0].layout.mesh = 1; }, "'w': no mesh 1"},
        Bad{"NoSuchDim", [](Problem& p) { p.parameters[0].layout.placements = {Placement::shard(2)}; }, "dim 2"},
        Bad{"NoName", [](Problem& p) { p.parameters[0].name.clear(); }, "has no name"},
        Bad{"NameTwice", [](Problem& p) { p.parameters.push_back(p.parameters[0]); }, "'w' is named twice"},
        Bad{"RowBlocks",
            [](Problem& p) {
              p.parameters[0].matrices.rows = {{3, {}, {}}};
            },
            "blocks [3] do not sum to 8"},
        Bad{"Multiplier", [](Problem& p) { p.parameters[0].multiplier = std::numeric_limits<double>::quiet_NaN(); },
            "'w': multiplier nan"},
        Bad{"OutputDim", [](Problem& p) { p.parameters[0].output_dim = 2; }, "'w': output_dim 2"},
        Bad{"GroupSize", [](Problem& p) { p.group_sizes = {0}; }, "groups: size 0"}),
    [](const auto& param) { return param.param.what; });

TEST(Plans, RefuseBadOptions) {
  const Problem problem = test::one_parameter({512, 512}, 4);
  auto refused = [&](PlanOptions options, const char* message) {
    try {
      make_plan(problem, options);
      FAIL() << message;
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), HasSubstr(message));
    }
  };
  PlanOptions options;
  options.waves = -1;
  refused(options, "waves -1");
  options = test::with(Strategy::kChunked);
  options.waves = 2;
  refused(options, "waves 2: strategy chunked");
  options = test::with(Strategy::kGrouped);
  options.wave_order = WaveOrder::kSmallLast;
  refused(options, "wave order: strategy grouped");
  options = test::with(Strategy::kRouted);
  options.elementwise = ElementwiseOrder::kLast;
  refused(options, "wave order: strategy routed");
  options = {};
  options.wave_order = static_cast<WaveOrder>(7);
  refused(options, "wave order 7");
  options = {};
  options.scratch_bytes = 1 << 20;
  refused(options, "scratch cap of 1 MiB is too small: the least that works is 6 MiB");
  // Was "0 MiB", which means no limit.
  options.scratch_bytes = 1000;
  refused(options, "scratch cap of 1000 bytes is too small: the least that works is 6 MiB");
  options = {};
  options.cost.memory_mbps = 0;
  refused(options, "memory_mbps 0");
  options = {};
  options.cost.rates.clear();
  refused(options, "no rates");
  EXPECT_THROW(parse_strategy("globl"), InvalidArgument);
}

}  // namespace
}  // namespace muster
