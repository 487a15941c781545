#include "run/tune.h"

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

namespace muster::run {
namespace {

TEST(Tune, WritesWhatCostTablesAreLoadedFrom) {
  CostTable table = CostTable::cpu();
  table.device = "a \"quoted\" name";
  table.overlap_percent = 7;
  const auto path = std::filesystem::path(testing::TempDir()) / "muster_tune_test.json";
  std::ofstream(path) << cost_json(table);
  const CostTable loaded = CostTable::load(path.string());
  std::filesystem::remove(path);
  EXPECT_EQ(loaded.device, table.device);
  ASSERT_EQ(loaded.rates.size(), table.rates.size());
  EXPECT_EQ(loaded.rates.back().gflops, table.rates.back().gflops);
  EXPECT_EQ(cost_json(loaded), cost_json(table));
}

}  // namespace
}  // namespace muster::run
