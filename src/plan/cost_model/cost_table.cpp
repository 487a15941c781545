#include "plan/cost_model/cost_table.h"

#include <filesystem>
#include <limits>

#include "base/file.h"
#include "base/json.h"
#include "base/read_file.h"
#include "base/text.h"

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
      base::fail("cost table {}: {} {}; must be {} to {}", base::in_quotes(t.device), field, value, low, high);
    }
  };
  constexpr int64_t kMaxNs = 1'000'000'000;
  constexpr int64_t kMaxRate = 1'000'000'000'000;
  constexpr int64_t kMinRate = 10;  // with it, times of the largest model stay within 64 bits
  if (t.rates.empty()) base::fail("cost table {}: no rates", base::in_quotes(t.device));
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

namespace plan {

CostTable parse_cost_table(std::string_view text, const std::string& where) {
  const base::Json json = base::parse_json(text, where);
  base::Members members(json, where);
  const auto integer = [&](std::string_view key, int64_t most = base::kMaxInteger) {  // validate() has the limits
    return base::to_integer(members.at(key), where, key, 0, most);
  };
  CostTable t;
  t.device = base::to_string(members.at("device"), where, "device");
  base::check_name(t.device, where, "device");
  for (const base::Json& rate : base::to_array(members.at("rates"), where, "rates")) {
    if (base::to_array(rate, where, "rates").size() != 2) {
      base::fail("{}: 'rates' has an array of {} values; each must be [short_side, gflops]", where, rate.size());
    }
    t.rates.push_back({base::to_integer(rate[0], where, "rates: short_side", 0, base::kMaxInteger),
                       base::to_integer(rate[1], where, "rates: gflops", 0, base::kMaxInteger)});
  }
  t.batch_ns = integer("batch_ns");
  t.exchange_ns = integer("exchange_ns");
  t.message_ns = integer("message_ns");
  t.memory_mbps = integer("memory_mbps");
  t.intra_node_mbps = integer("intra_node_mbps");
  t.inter_node_mbps = integer("inter_node_mbps");
  t.ranks_per_node = static_cast<int32_t>(integer("ranks_per_node", INT32_MAX));
  t.compute_bytes = integer("compute_bytes");
  t.overlap_percent = integer("overlap_percent");
  members.finish();
  validate(t);
  return t;
}

}  // namespace plan

CostTable CostTable::load(const std::string& name_or_path) {
  if (name_or_path == "h200") return h200();
  if (name_or_path == "cpu") return cpu();
  std::error_code error;
  if (!std::filesystem::is_regular_file(name_or_path, error)) {
    base::fail("cost table {}: neither h200, cpu nor a file", base::path_text(name_or_path));
  }
  return plan::parse_cost_table(base::read_file(name_or_path), "cost table " + base::path_text(name_or_path));
}

}  // namespace muster
