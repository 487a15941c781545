#include "sim/cluster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/error.h"

namespace muster::sim {
namespace {

std::string refusal(const std::string& text) {
  try {
    parse_cluster(text, "F", "");
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "nothing";
}

TEST(Cluster, BuiltInOnesSayWhereTheirFiguresComeFrom) {
  for (const char* name : {"h100-ib", "gb300"}) {
    const Cluster cluster = Cluster::load(name, "");
    EXPECT_EQ(cluster.name, name);
    EXPECT_THAT(cluster.source, testing::HasSubstr("data sheet"));
    EXPECT_GT(cluster.memory_bytes, 0);
    EXPECT_NO_THROW(validate(cluster.cost));
  }
}

TEST(Cluster, AnAdapterForEveryTwoRanksGivesEachHalf) {
  const Cluster c = parse_cluster(
      R"({"name": "n", "source": "s", "ranks_per_node": 8, "nics_per_node": 4, "nic_mbps": 50000})", "F", "");
  EXPECT_EQ(c.cost.inter_node_mbps, 25'000);
  EXPECT_EQ(c.cost.ranks_per_node, 8);
}

TEST(Cluster, WhatIsNotSaidIsTheCostTables) {
  const Cluster c = parse_cluster(R"({"name": "n", "source": "s", "cost": "cpu"})", "F", "");
  const CostTable cpu = CostTable::cpu();
  EXPECT_EQ(c.cost.exchange_ns, cpu.exchange_ns);
  EXPECT_EQ(c.cost.intra_node_mbps, cpu.intra_node_mbps);
  EXPECT_EQ(c.cost.inter_node_mbps, cpu.inter_node_mbps);
  EXPECT_EQ(c.cost.ranks_per_node, cpu.ranks_per_node);
}

TEST(Cluster, ScalesItsOwnTableToItsChipAndNoOther) {
  const std::string text = R"({"name": "n", "source": "s", "cost": "h200", "rate_percent": 200, "memory_percent": 50})";
  EXPECT_EQ(parse_cluster(text, "F", "").cost.rates[0].gflops, 2 * CostTable::h200().rates[0].gflops);
  EXPECT_EQ(parse_cluster(text, "F", "").cost.memory_mbps, CostTable::h200().memory_mbps / 2);
  EXPECT_EQ(parse_cluster(text, "F", "cpu").cost.rates[0].gflops, CostTable::cpu().rates[0].gflops);
}

TEST(Cluster, RefusesWhatItDoesNotUnderstandWithFieldAndValue) {
  EXPECT_THAT(refusal("[1]"), testing::HasSubstr("F: must be a JSON object, not an array"));
  EXPECT_THAT(refusal("{"), testing::HasSubstr("F: not valid JSON at line 1, column 2"));
  EXPECT_THAT(refusal(R"({"source": "s"})"), testing::HasSubstr("'name' is missing"));
  EXPECT_THAT(refusal(R"({"name": "n"})"), testing::HasSubstr("'source' is missing"));
  EXPECT_THAT(refusal(R"({"name": 3, "source": "s"})"), testing::HasSubstr("'name' must be a string, not 3"));
  EXPECT_THAT(refusal(R"({"name": "n", "source": "s", "nic_mbps": 0})"),
              testing::HasSubstr("'nic_mbps' must be an integer from 10 to 1000000000000, not 0"));
  EXPECT_THAT(refusal(R"({"name": "n", "source": "s", "nic_mbps": 1.5})"), testing::HasSubstr("not 1.5"));
  EXPECT_THAT(refusal(R"({"name": "n", "source": "s", "memory_bytes": 18446744073709551615})"),
              testing::HasSubstr("not 18446744073709551615"));
  EXPECT_THAT(refusal(R"({"name": "n", "source": "s", "nics": 8})"), testing::HasSubstr("unknown key 'nics'"));
  EXPECT_THAT(refusal(R"({"name": "n", "source": "s", "cost": "none"})"), testing::HasSubstr("'none'"));
  EXPECT_THROW(Cluster::load("no-such-cluster", ""), InvalidArgument);
}

// The value was written into the message by a function that calls itself once per level: SIGSEGV.
TEST(Cluster, RefusesDeepNestingInOneLine) {
  const std::string deep(65'500, '[');
  const std::string text = R"({"name": "n", "source": "s", "nic_mbps": )" + deep + std::string(65'500, ']') + "}";
  EXPECT_EQ(refusal(text), "F: nested more than 32 deep");
}

}  // namespace
}  // namespace muster::sim
