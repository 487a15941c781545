#include <filesystem>
#include <fstream>
#include <limits>

#include <nlohmann/json.hpp>

#include "base/text.h"
#include "muster/cost.h"

namespace muster {

// Rates, batch_ns and memory as `muster tune --device cuda` measured them on one H200 (benchmarks/results). One GPU
// cannot tell the rest: exchanges are estimates, the links NVLink 4 and one 400 Gb/s adapter per rank, less protocol.
CostTable CostTable::h200() {
  CostTable t;
  t.device = "h200";
  t.rates = {{64, 13'359},    {128, 76'484},   {256, 183'663},  {512, 371'925}, {768, 455'672},
             {1024, 505'785}, {2048, 605'484}, {4096, 618'617}, {8192, 647'107}};
  t.batch_ns = 74'021;
  t.exchange_ns = 25'000;
  t.message_ns = 700;
  t.memory_mbps = 3'615'333;
  t.intra_node_mbps = 350'000;
  t.inter_node_mbps = 45'000;
  t.ranks_per_node = 8;
  t.compute_bytes = 2;
  t.overlap_percent = 80;
  return t;
}

// Two cores of a server with AVX-512 per rank; the ranks of one machine share its memory.
CostTable CostTable::cpu() {
  CostTable t;
  t.device = "cpu";
  t.rates = {{64, 10}, {256, 60}, {768, 150}, {4096, 170}};
  t.batch_ns = 20'000;
  t.exchange_ns = 20'000;
  t.message_ns = 5'000;
  t.memory_mbps = 12'000;
  t.intra_node_mbps = 5'000;
  t.inter_node_mbps = 1'000;
  t.ranks_per_node = 64;
  t.compute_bytes = 4;
  t.overlap_percent = 50;
  return t;
}

void validate(const CostTable& t) {
  auto in_range = [&](const char* field, int64_t value, int64_t low, int64_t high) {
    if (value < low || value > high) {
      base::fail("cost table '{}': {} {}; must be {} to {}", t.device, field, value, low, high);
    }
  };
  constexpr int64_t kMaxNs = 1'000'000'000;
  constexpr int64_t kMaxRate = 1'000'000'000'000;
  constexpr int64_t kMinRate = 10;  // with it, times of the largest model stay within 64 bits
  if (t.rates.empty()) base::fail("cost table '{}': no rates", t.device);
  int64_t before = 0;
  for (const CostTable::Rate& rate : t.rates) {
    in_range("short_side (ascending)", rate.short_side, before + 1, std::numeric_limits<int64_t>::max());
    in_range("gflops", rate.gflops, 1, kMaxRate);
    before = rate.short_side;
  }
  in_range("batch_ns", t.batch_ns, 0, kMaxNs);
  in_range("exchange_ns", t.exchange_ns, 0, kMaxNs);
  in_range("message_ns", t.message_ns, 0, kMaxNs);
  in_range("memory_mbps", t.memory_mbps, kMinRate, kMaxRate);
  in_range("intra_node_mbps", t.intra_node_mbps, kMinRate, kMaxRate);
  in_range("inter_node_mbps", t.inter_node_mbps, kMinRate, kMaxRate);
  in_range("ranks_per_node", t.ranks_per_node, 1, 1 << 20);
  in_range("compute_bytes", t.compute_bytes, 1, 8);
  in_range("overlap_percent", t.overlap_percent, 0, 100);
}

namespace {

CostTable parse_cost(const std::string& path) {
  std::ifstream file(path);
  if (!file) base::fail("cost table '{}': cannot be read", path);
  CostTable t;
  std::string field = "the file";
  auto integer = [&](const nlohmann::json& value) {
    if (!value.is_number_integer()) base::fail("cost table '{}': {} is not an integer", path, field);
    return value.get<int64_t>();
  };
  try {
    const nlohmann::json json = nlohmann::json::parse(file);
    auto at = [&](const char* name) -> const nlohmann::json& {
      field = name;
      return json.at(name);
    };
    t.device = at("device").get<std::string>();
    for (const nlohmann::json& rate : at("rates")) t.rates.push_back({integer(rate.at(0)), integer(rate.at(1))});
    t.batch_ns = integer(at("batch_ns"));
    t.exchange_ns = integer(at("exchange_ns"));
    t.message_ns = integer(at("message_ns"));
    t.memory_mbps = integer(at("memory_mbps"));
    t.intra_node_mbps = integer(at("intra_node_mbps"));
    t.inter_node_mbps = integer(at("inter_node_mbps"));
    const int64_t ranks_per_node = integer(at("ranks_per_node"));
    t.ranks_per_node =
        ranks_per_node == static_cast<int32_t>(ranks_per_node) ? static_cast<int32_t>(ranks_per_node) : -1;
    t.compute_bytes = integer(at("compute_bytes"));
    t.overlap_percent = integer(at("overlap_percent"));
  } catch (const nlohmann::json::exception&) {
    base::fail("cost table '{}': {} is missing or malformed", path, field);
  }
  return t;
}

}  // namespace

CostTable CostTable::load(const std::string& name_or_path) {
  if (name_or_path == "h200") return h200();
  if (name_or_path == "cpu") return cpu();
  if (!std::filesystem::is_regular_file(name_or_path)) {
    base::fail("cost table '{}': neither h200, cpu nor a file", name_or_path);
  }
  CostTable t = parse_cost(name_or_path);
  validate(t);
  return t;
}

}  // namespace muster
