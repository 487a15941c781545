// What operations cost on a device. Integers, so that every rank computes the same plan from the same table.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace muster {

struct CostTable {
  // The rate that a batched orthogonalization achieves if the shorter side of its matrices is at most `short_side`.
  struct Rate {
    int64_t short_side;
    int64_t gflops;  // 1e9 floating-point operations per second
  };

  std::string device;
  std::vector<Rate> rates;      // ascending short_side; the last rate also holds for longer sides
  int64_t batch_ns = 0;         // to start one batched orthogonalization: its launches
  int64_t exchange_ns = 0;      // to start one ragged exchange
  int64_t message_ns = 0;       // per message of an exchange
  int64_t memory_mbps = 1;      // device memory; this and the next two in 1e6 bytes per second
  int64_t intra_node_mbps = 1;  // between ranks of a node; per rank and direction
  int64_t inter_node_mbps = 1;  // between nodes; per rank and direction
  int32_t ranks_per_node = 8;
  int64_t compute_bytes = 2;     // per element while a matrix is orthogonalized
  int64_t overlap_percent = 80;  // how much of an exchange a computation at the same time really hides

  static CostTable h200();
  static CostTable cpu();
  // A built-in table ("h200", "cpu") or a JSON file as `muster tune` writes it. Throws InvalidArgument.
  static CostTable load(const std::string& name_or_path);
};

// Throws InvalidArgument that names the field and its value.
void validate(const CostTable& cost);

}  // namespace muster
