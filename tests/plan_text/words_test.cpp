#include "plan_text/words.h"

#include <limits>

#include <gtest/gtest.h>

namespace muster::plan_text {
namespace {

TEST(Words, LayoutsReadAxisByAxis) {
  const Mesh mesh = {"world", {{"replicate", 2}, {"fsdp", 4}, {"tp", 2}}, {}};
  Layout layout;
  layout.placements = {Placement::replicate(), Placement::shard(0), Placement::shard(1)};
  EXPECT_EQ(mesh_words(mesh), "replicate=2,fsdp=4,tp=2");
  EXPECT_EQ(layout_words(mesh, layout), "replicate: replicate, fsdp: shard(0), tp: shard(1)");
  EXPECT_EQ(replica_count(mesh, layout), 2);

  layout.placements[1].split_factor = 2;
  layout.placements[2] = Placement::flat();
  layout.placements[2].sizes = {5, 6};
  layout.order = {2, 1, 0};
  EXPECT_EQ(layout_words(mesh, layout), "replicate: replicate, fsdp: shard(0) of each of 2 chunks, tp: flat of 5, 6");

  layout.placements = {Placement::replicate(), Placement::shard(0), Placement::shard(0)};
  EXPECT_EQ(layout_words(mesh, layout), "replicate: replicate, fsdp: shard(0), tp: shard(0) (split by tp, then fsdp)");
}

TEST(Words, LongListsOfSizesAreCut) {
  const Mesh mesh = {"world", {{"fsdp", 6}}, {}};
  Layout layout;
  layout.placements = {Placement::shard(0)};
  layout.placements[0].sizes = {1, 2, 3, 4, 5, 6};
  EXPECT_EQ(layout_words(mesh, layout), "fsdp: shard(0) of 1, 2, 3, 4, …");
}

TEST(Words, ShapesAndTotals) {
  EXPECT_EQ(shape_words({768, 3072}), "768×3072");
  EXPECT_EQ(shape_words({}), "scalar");
  Problem problem;
  EXPECT_EQ(total_elements(problem), 0);
  problem.parameters.resize(3);
  problem.parameters[0].shape = {int64_t{1} << 62};
  EXPECT_EQ(total_elements(problem), (int64_t{1} << 62) + 2);
  problem.parameters[1].shape = {int64_t{1} << 62};
  EXPECT_EQ(total_elements(problem), std::numeric_limits<int64_t>::max());
}

}  // namespace
}  // namespace muster::plan_text
