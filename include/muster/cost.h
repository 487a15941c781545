// What things cost on a device, in integers, so that every rank computes the same plan from the same table.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace muster {

struct CostTable {
  // Achieved rate of a batched orthogonalization whose short side is at most `short_side`.
  struct Rate {
    int64_t short_side;
    int64_t gflops;  // 1e9 floating-point operations a second
  };

  std::string device;
  std::vector<Rate> rates;      // ascending short_side; the last one holds for everything longer
  int64_t batch_ns = 0;         // starting one batched orthogonalization: its launches
  int64_t exchange_ns = 0;      // starting one ragged exchange
  int64_t message_ns = 0;       // one message within it
  int64_t memory_mbps = 1;      // 1e6 bytes a second
  int64_t intra_node_mbps = 1;  // one rank, one direction
  int64_t inter_node_mbps = 1;
  int32_t ranks_per_node = 8;
  int64_t compute_bytes = 2;     // of an element while it is orthogonalized
  int64_t overlap_percent = 80;  // how much of an exchange beside a computation really hides it

  static CostTable h200();
  static CostTable cpu();
  // A built-in name ("h200", "cpu") or a JSON file as `muster tune` writes it.
  static CostTable load(const std::string& name_or_path);
};

// Throws InvalidArgument naming the field and its value.
void validate(const CostTable& cost);

}  // namespace muster
