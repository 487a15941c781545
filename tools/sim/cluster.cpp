#include "sim/cluster.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <limits>
#include <string_view>

#include "base/file.h"
#include "base/json.h"
#include "base/read_file.h"
#include "base/text.h"

namespace muster::sim {
namespace {

// Link rates, memory and ratios of peak rates are those of data sheets, unreduced (docs/explanation/scale.md says
// which). Launches are a twentieth of the start of a batch as measured on one H200: some twenty launches. What starts
// an exchange and a message is the cost table's.
constexpr std::string_view kH100 = R"({
  "name": "h100-ib",
  "source": "NVIDIA H100 and H200 data sheets: the same tensor cores, 3.35 against 4.8 TB/s, NVLink 900 GB/s both ways, 80 GB; DGX H100 data sheet: 8 GPUs and 8 ConnectX-7 of 400 Gb/s a node",
  "cost": "h200", "memory_percent": 70,
  "ranks_per_node": 8, "intra_node_mbps": 450000, "nics_per_node": 8, "nic_mbps": 50000,
  "launch_ns": 3700, "memory_bytes": 80000000000
})";
constexpr std::string_view kGb300 = R"({
  "name": "gb300",
  "source": "NVIDIA GB300 NVL72 data sheet, a 72nd of the rack: 2.5 against 0.99 dense PFLOP/s in bf16 of an H200, 8 against 4.8 TB/s, NVLink 1.8 TB/s both ways among 72, 288 GB; ConnectX-8 of 800 Gb/s a GPU",
  "cost": "h200", "rate_percent": 253, "memory_percent": 167,
  "ranks_per_node": 72, "intra_node_mbps": 900000, "nics_per_node": 72, "nic_mbps": 100000,
  "launch_ns": 3700, "memory_bytes": 288000000000
})";
constexpr std::array<std::pair<std::string_view, std::string_view>, 2> kBuiltIn{
    {{"h100-ib", kH100}, {"gb300", kGb300}}};

constexpr int64_t kMaxRate = 1'000'000'000'000;
constexpr int64_t kMaxNs = 1'000'000'000;
constexpr int64_t kMaxRanks = 1 << 20;

}  // namespace

Cluster parse_cluster(std::string_view text, const std::string& where, const std::string& cost) {
  const base::Json json = base::parse_json(text, where);
  base::Members members(json, where);
  const auto integer = [&](std::string_view key, int64_t otherwise, int64_t low, int64_t high) {
    return members.integer(key, low, high).value_or(otherwise);
  };
  Cluster c;
  c.name = base::to_string(members.at("name"), where, "name");
  base::check_name(c.name, where, "name");
  c.source = base::to_string(members.at("source"), where, "source");
  if (c.source.empty()) base::fail("{}: 'source' is empty", where);
  const std::string own = members.string("cost").value_or("h200");
  const std::string& table = cost.empty() ? own : cost;
  CostTable& t = c.cost = CostTable::load(table);
  // What turns the cluster's own table into its chip says nothing about another table.
  const int64_t rate_percent = integer("rate_percent", 100, 1, 100'000);
  const int64_t memory_percent = integer("memory_percent", 100, 1, 100'000);
  if (cost.empty()) {
    for (CostTable::Rate& rate : t.rates) rate.gflops = std::max<int64_t>(1, rate.gflops * rate_percent / 100);
    t.memory_mbps = t.memory_mbps * memory_percent / 100;
  }
  t.ranks_per_node = static_cast<int32_t>(integer("ranks_per_node", t.ranks_per_node, 1, kMaxRanks));
  t.intra_node_mbps = integer("intra_node_mbps", t.intra_node_mbps, 10, kMaxRate);
  t.exchange_ns = integer("exchange_ns", t.exchange_ns, 0, kMaxNs);
  t.message_ns = integer("message_ns", t.message_ns, 0, kMaxNs);
  c.nics_per_node = static_cast<int32_t>(integer("nics_per_node", t.ranks_per_node, 1, kMaxRanks));
  c.nic_mbps = integer("nic_mbps", t.inter_node_mbps, 10, kMaxRate);
  c.launch_ns = integer("launch_ns", 0, 0, kMaxNs);
  c.memory_bytes = integer("memory_bytes", 0, 0, std::numeric_limits<int64_t>::max());
  members.finish();
  t.inter_node_mbps =
      std::max<int64_t>(10, std::min(c.nic_mbps, kMaxRate / c.nics_per_node) * c.nics_per_node / t.ranks_per_node);
  validate(t);
  return c;
}

Cluster Cluster::load(const std::string& name_or_path, const std::string& cost) {
  for (const auto& [name, text] : kBuiltIn) {
    if (name_or_path == name) return parse_cluster(text, "cluster " + name_or_path, cost);
  }
  std::error_code error;
  if (!std::filesystem::is_regular_file(name_or_path, error)) {
    base::fail("cluster {}: neither {} nor a file", base::path_text(name_or_path), cluster_names());
  }
  return parse_cluster(base::read_file(name_or_path), "cluster " + base::path_text(name_or_path), cost);
}

std::string cluster_names() {
  std::string names;
  for (const auto& [name, text] : kBuiltIn) names += (names.empty() ? "" : ", ") + std::string(name);
  return names;
}

}  // namespace muster::sim
