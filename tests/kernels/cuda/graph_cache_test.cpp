#include "kernels/cuda/runtime/graph_cache.h"

#include <vector>

#include <gtest/gtest.h>

namespace muster::kernels::cuda {
namespace {

// Graphs are numbers here, so no device is needed.
std::vector<uint64_t> destroyed;

cudaGraphExec_t graph(uint64_t number) { return reinterpret_cast<cudaGraphExec_t>(number); }
cudaError_t destroy(cudaGraphExec_t graph) {
  destroyed.push_back(reinterpret_cast<uint64_t>(graph));
  return cudaSuccess;
}

class GraphCacheTest : public testing::Test {
 protected:
  void SetUp() override { destroyed.clear(); }
};

TEST_F(GraphCacheTest, KnowsGraphsByKey) {
  GraphCache cache(destroy);
  EXPECT_EQ(cache.use(1, 1), nullptr);
  EXPECT_FALSE(cache.seen(1));
  cache.mark_seen(1);
  EXPECT_TRUE(cache.seen(1));
  EXPECT_EQ(cache.use(1, 2), nullptr);
  cache.insert(1, graph(10), 2);
  cache.insert(2, graph(20), 3);
  EXPECT_EQ(cache.use(1, 4), graph(10));
  EXPECT_EQ(cache.use(2, 5), graph(20));
  EXPECT_EQ(cache.size(), 2U);
}

TEST_F(GraphCacheTest, EvictsTheGraphThatWasUsedLongestAgo) {
  GraphCache cache(destroy);
  int64_t step = 0;
  for (uint64_t key = 0; key < GraphCache::kMostGraphs; ++key) cache.insert(key, graph(100 + key), ++step);
  EXPECT_TRUE(destroyed.empty());
  EXPECT_EQ(cache.use(0, ++step), graph(100));
  cache.insert(50, graph(150), ++step);
  cache.insert(51, graph(151), ++step);
  EXPECT_EQ(destroyed, (std::vector<uint64_t>{101, 102}));
  EXPECT_EQ(cache.size(), GraphCache::kMostGraphs);
  EXPECT_EQ(cache.use(1, ++step), nullptr);
  EXPECT_EQ(cache.use(0, ++step), graph(100));
}

TEST_F(GraphCacheTest, DroppingForgetsWhichKeysWereSeen) {
  GraphCache cache(destroy);
  cache.mark_seen(1);
  cache.insert(1, graph(10), 1);
  cache.drop();
  EXPECT_EQ(destroyed, std::vector<uint64_t>{10});
  EXPECT_EQ(cache.size(), 0U);
  EXPECT_FALSE(cache.seen(1));
  EXPECT_EQ(cache.use(1, 2), nullptr);
}

TEST_F(GraphCacheTest, DestroysItsGraphs) {
  { GraphCache(destroy).insert(1, graph(10), 1); }
  EXPECT_EQ(destroyed, std::vector<uint64_t>{10});
}

}  // namespace
}  // namespace muster::kernels::cuda
