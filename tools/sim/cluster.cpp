#include "sim/cluster.h"

#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <set>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "muster/error.h"

namespace muster::sim {
namespace {

// Link rates, memory and ratios of peak rates are those of data sheets, unreduced (docs/explanation/scale.md says which). Launches
// are a twentieth of the start of a batch as measured on one H200: some twenty launches. What starts an exchange and a
// message is the cost table's.
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

// The members of the object, each asked for by name.
class Fields {
 public:
  Fields(const std::string& text, std::string where) : where_(std::move(where)) {
    json_ = nlohmann::json::parse(text, nullptr, false);
    if (!json_.is_object()) throw InvalidArgument(fmt::format("cluster '{}': not a JSON object", where_));
  }

  std::string string(const std::string& key) {
    asked_.insert(key);
    if (!json_.contains(key)) return {};
    if (!json_[key].is_string()) refuse(key, "is not a string");
    return json_[key].get<std::string>();
  }
  int64_t integer(const std::string& key, int64_t otherwise, int64_t low, int64_t high) {
    asked_.insert(key);
    if (!json_.contains(key)) return otherwise;
    const nlohmann::json& value = json_[key];
    // What is past int64 is unsigned, or not an integer to the parser.
    const bool fits = value.is_number_integer() && (!value.is_number_unsigned() || value.get<uint64_t>() <= INT64_MAX);
    if (!fits) refuse(key, "is not an integer");
    if (value.get<int64_t>() < low || value.get<int64_t>() > high) {
      refuse(key, fmt::format("is not between {} and {}", low, high));
    }
    return value.get<int64_t>();
  }
  void finish() {
    for (const auto& [key, value] : json_.items()) {
      if (!asked_.contains(key)) refuse(key, "is not a field of a cluster");
    }
  }

 private:
  [[noreturn]] void refuse(const std::string& key, const std::string& why) const {
    const std::string shown = json_.at(key).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
    throw InvalidArgument(fmt::format("cluster '{}': {} {} {}", where_, key, shown.substr(0, 60), why));
  }

  std::string where_;
  nlohmann::json json_;
  std::set<std::string> asked_;
};

std::string read(const std::string& path) {
  std::ifstream file(path);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file) throw InvalidArgument(fmt::format("cluster '{}': cannot be read", path));
  return text;
}

}  // namespace

Cluster parse_cluster(const std::string& text, const std::string& where, const std::string& cost) {
  Fields fields(text, where);
  Cluster c;
  c.name = fields.string("name");
  c.source = fields.string("source");
  if (c.name.empty() || c.source.empty()) {
    throw InvalidArgument(fmt::format("cluster '{}': {} is missing", where, c.name.empty() ? "name" : "source"));
  }
  const std::string own = fields.string("cost");
  const std::string table = !cost.empty() ? cost : own.empty() ? "h200" : own;
  CostTable& t = c.cost = CostTable::load(table);
  // What turns the cluster's own table into its chip says nothing about another table.
  const int64_t rate_percent = fields.integer("rate_percent", 100, 1, 100'000);
  const int64_t memory_percent = fields.integer("memory_percent", 100, 1, 100'000);
  if (cost.empty()) {
    for (CostTable::Rate& rate : t.rates) rate.gflops = std::max<int64_t>(1, rate.gflops * rate_percent / 100);
    t.memory_mbps = t.memory_mbps * memory_percent / 100;
  }
  t.ranks_per_node = static_cast<int32_t>(fields.integer("ranks_per_node", t.ranks_per_node, 1, kMaxRanks));
  t.intra_node_mbps = fields.integer("intra_node_mbps", t.intra_node_mbps, 10, kMaxRate);
  t.exchange_ns = fields.integer("exchange_ns", t.exchange_ns, 0, kMaxNs);
  t.message_ns = fields.integer("message_ns", t.message_ns, 0, kMaxNs);
  c.nics_per_node = static_cast<int32_t>(fields.integer("nics_per_node", t.ranks_per_node, 1, kMaxRanks));
  c.nic_mbps = fields.integer("nic_mbps", t.inter_node_mbps, 10, kMaxRate);
  c.launch_ns = fields.integer("launch_ns", 0, 0, kMaxNs);
  c.memory_bytes = fields.integer("memory_bytes", 0, 0, std::numeric_limits<int64_t>::max());
  fields.finish();
  t.inter_node_mbps =
      std::max<int64_t>(10, std::min(c.nic_mbps, kMaxRate / c.nics_per_node) * c.nics_per_node / t.ranks_per_node);
  validate(t);
  return c;
}

Cluster Cluster::load(const std::string& name_or_path, const std::string& cost) {
  for (const auto& [name, text] : kBuiltIn) {
    if (name_or_path == name) return parse_cluster(std::string(text), name_or_path, cost);
  }
  std::error_code error;
  if (!std::filesystem::is_regular_file(name_or_path, error)) {
    throw InvalidArgument(fmt::format("cluster '{}': neither {} nor a file", name_or_path, cluster_names()));
  }
  return parse_cluster(read(name_or_path), name_or_path, cost);
}

std::string cluster_names() {
  std::string names;
  for (const auto& [name, text] : kBuiltIn) names += (names.empty() ? "" : ", ") + std::string(name);
  return names;
}

}  // namespace muster::sim
