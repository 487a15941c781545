#include "layout/partition.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/error.h"
#include "support/oracle.h"
#include "support/runs.h"

namespace muster::layout {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Mesh line(int32_t n) { return {"line", {{"fsdp", n}}, {}}; }
Mesh square(int32_t a, int32_t b) { return {"square", {{"fsdp", a}, {"tp", b}}, {}}; }

std::vector<int64_t> local_sizes(const Mesh& mesh, const Layout& layout, const Shape& shape) {
  const Partition partition(mesh, layout, shape, "w");
  std::vector<int64_t> out;
  for (int32_t p = 0; p < partition.positions(); ++p) out.push_back(partition.local_elements(p));
  return out;
}

// The flat indices of a shard in storage order, through its runs.
std::vector<int64_t> listed(const Partition& partition, int32_t position) {
  return test::flat_indices(partition.shape(), partition.shard(position), partition.local_elements(position));
}

TEST(Partitions, ChunkAsTorchDoes) {
  // torch 2.13, FSDP2 on 4 ranks: 7 rows give 2,2,2,1 and 5 rows 2,2,1,0.
  EXPECT_THAT(local_sizes(line(4), {0, {Placement::shard(0)}, {}}, {7, 3}), ElementsAre(6, 6, 6, 3));
  EXPECT_THAT(local_sizes(line(4), {0, {Placement::shard(0)}, {}}, {5, 3}), ElementsAre(6, 6, 3, 0));
}

TEST(Partitions, NestTwoAxesOnOneDimInMeshOrder) {
  const Mesh mesh = square(2, 2);
  const Partition p(mesh, {0, {Placement::shard(0), Placement::shard(0)}, {}}, {6, 1}, "w");
  EXPECT_THAT(listed(p, 0), ElementsAre(0, 1));
  EXPECT_THAT(listed(p, 1), ElementsAre(2));
  EXPECT_THAT(listed(p, 2), ElementsAre(3, 4));
  EXPECT_THAT(listed(p, 3), ElementsAre(5));
}

TEST(Partitions, NestTwoAxesOnOneDimInTheOtherOrder) {
  // FSDP2 over TP: tp splits first although it is the inner mesh axis (torch's _StridedShard on fsdp).
  const Mesh mesh = square(2, 2);
  const Partition p(mesh, {0, {Placement::shard(0), Placement::shard(0)}, {1, 0}}, {6, 1}, "w");
  EXPECT_THAT(listed(p, 0), ElementsAre(0, 1));
  EXPECT_THAT(listed(p, 1), ElementsAre(3, 4));
  EXPECT_THAT(listed(p, 2), ElementsAre(2));
  EXPECT_THAT(listed(p, 3), ElementsAre(5));
}

TEST(Partitions, HoldAPieceOfEachChunkUnderASplitFactor) {
  // Fused gate and up on two ranks: each has half of the gate and half of the up projection.
  const Mesh mesh = line(2);
  const Partition p(mesh, {0, {{Placement::Kind::kShard, 0, 2, {}}}, {}}, {8, 1}, "w");
  EXPECT_THAT(listed(p, 0), ElementsAre(0, 1, 4, 5));
  EXPECT_THAT(listed(p, 1), ElementsAre(2, 3, 6, 7));
}

TEST(Partitions, TakeExplicitSizes) {
  const Mesh mesh = line(3);
  const Partition p(mesh, {0, {{Placement::Kind::kShard, 1, 1, {3, 0, 1}}}, {}}, {2, 4}, "w");
  EXPECT_THAT(listed(p, 0), ElementsAre(0, 1, 2, 4, 5, 6));
  EXPECT_THAT(listed(p, 1), ElementsAre());
  EXPECT_THAT(listed(p, 2), ElementsAre(3, 7));
}

TEST(Partitions, CutFlatRangesOfWhatOtherAxesLeave) {
  // Columns by tp, then the local elements by range, as Megatron's distributed optimizer stores them.
  const Mesh mesh = square(2, 2);
  const Partition p(mesh, {0, {Placement::flat(), Placement::shard(1)}, {}}, {3, 4}, "w");
  EXPECT_THAT(listed(p, 0), ElementsAre(0, 1, 4));
  EXPECT_THAT(listed(p, 1), ElementsAre(2, 3, 6));
  EXPECT_THAT(listed(p, 2), ElementsAre(5, 8, 9));
  EXPECT_THAT(listed(p, 3), ElementsAre(7, 10, 11));
}

TEST(Partitions, AgreeWithExplicitListsOnEveryMixture) {
  const Shape shape{5, 4, 3};
  const Mesh mesh{"m", {{"a", 3}, {"b", 2}, {"c", 2}}, {}};
  std::vector<Placement> choices{Placement::replicate(), Placement::flat(),   Placement::shard(0),
                                 Placement::shard(1),    Placement::shard(2), {Placement::Kind::kShard, 0, 2, {}}};
  int cases = 0;
  for (const Placement& a : choices) {
    for (const Placement& b : choices) {
      for (const Placement& c : choices) {
        for (const std::vector<int32_t>& order : {std::vector<int32_t>{}, {2, 1, 0}, {1, 2, 0}}) {
          const Layout layout{0, {a, b, c}, order};
          const Partition partition(mesh, layout, shape, "w");
          for (int32_t p = 0; p < partition.positions(); ++p) {
            ASSERT_EQ(listed(partition, p), test::shard_elements(mesh, layout, shape, p)) << "position " << p;
          }
          ++cases;
        }
      }
    }
  }
  EXPECT_EQ(cases, 6 * 6 * 6 * 3);
}

TEST(Partitions, TellReplicasApart) {
  const Mesh mesh = square(2, 3);
  const Partition p(mesh, {0, {Placement::replicate(), Placement::shard(0)}, {}}, {6, 1}, "w");
  EXPECT_EQ(p.replicas(), 2);
  EXPECT_EQ(p.replica(1), 0);
  EXPECT_EQ(p.replica(4), 1);
  EXPECT_EQ(listed(p, 1), listed(p, 4));
}

struct BadLayout {
  const char* what;
  Layout layout;
  const char* message;
  Shape shape = {};
};

class BadLayouts : public testing::TestWithParam<BadLayout> {};

TEST_P(BadLayouts, AreNamedWithTheirValue) {
  try {
    const Shape shape = GetParam().shape;
    const Mesh mesh = square(2, 2);
    Partition(mesh, GetParam().layout, shape.empty() ? Shape{4, 4} : shape, "layer.w");
    FAIL() << "accepted";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("'layer.w'"));
    EXPECT_THAT(error.what(), HasSubstr(GetParam().message));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, BadLayouts,
    testing::Values(
        BadLayout{"NoSuchDim", {0, {Placement::shard(2), Placement::replicate()}, {}}, "dim 2 of a tensor with 2 dims"},
        BadLayout{"NegativeDim", {0, {Placement::shard(-1), Placement::replicate()}, {}}, "dim -1"},
        BadLayout{"TooFewPlacements", {0, {Placement::shard(0)}, {}}, "1 placements on mesh 'square' of 2 axes"},
        BadLayout{"OrderNamesAnAxisTwice", {0, {Placement::shard(0), Placement::shard(0)}, {0, 0}}, "order [0,0]"},
        BadLayout{"OrderTooShort", {0, {Placement::shard(0), Placement::shard(0)}, {1}}, "order [1]"},
        BadLayout{"SizesDoNotSum",
                  {0, {{Placement::Kind::kShard, 0, 1, {1, 2}}, Placement::replicate()}, {}},
                  "sizes do not sum to the 4 indices of dim 0 they cut, but to 3"},
        BadLayout{"SizesOverflow",
                  {0, {{Placement::Kind::kShard, 0, 1, {INT64_MAX, INT64_MAX}}, Placement::replicate()}, {}},
                  "has sizes [9223372036854775807,9223372036854775807]"},
        BadLayout{"TooFewSizes",
                  {0, {{Placement::Kind::kShard, 0, 1, {4}}, Placement::replicate()}, {}},
                  "axis 'fsdp' of 2 ranks has 1 sizes"},
        BadLayout{"NegativeSize",
                  {0, {{Placement::Kind::kShard, 0, 1, {5, -1}}, Placement::replicate()}, {}},
                  "axis 'fsdp' has size -1"},
        BadLayout{"FlatSizesDoNotSum",
                  {0, {{Placement::Kind::kFlat, 0, 1, {15, 2}}, Placement::replicate()}, {}},
                  "flat sizes do not sum to the 16 elements they cut, but to 17"},
        BadLayout{"SplitFactorZero",
                  {0, {{Placement::Kind::kShard, 0, 0, {}}, Placement::replicate()}, {}},
                  "split_factor 0"},
        BadLayout{"SplitFactorOnFlat",
                  {0, {{Placement::Kind::kFlat, 0, 2, {}}, Placement::replicate()}, {}},
                  "axis 'fsdp' has split_factor 2 but shards no dim"},
        BadLayout{"SizesOnReplicate",
                  {0, {{Placement::Kind::kReplicate, 0, 1, {4, 0}}, Placement::replicate()}, {}},
                  "axis 'fsdp' replicates, but has sizes"},
        BadLayout{"TooManyRuns",
                  {0, {{Placement::Kind::kShard, 0, 4096, {}}, {Placement::Kind::kShard, 1, 4096, {}}}, {}},
                  "a shard of more than 4096 runs",
                  {9000, 9000}},
        BadLayout{"SplitFactorHuge",
                  {0, {{Placement::Kind::kShard, 0, 1 << 30, {}}, Placement::replicate()}, {}},
                  "split_factor 1073741824"}),
    [](const auto& param) { return param.param.what; });

}  // namespace
}  // namespace muster::layout
