/// \file
/// What operations cost on a device. Integers, so that every rank computes the same plan from the same table.
/// docs/reference/cost-table.md has the limits of each field.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace muster {

/// What the planner knows of a device and its links. A table changes which rank does what, and never a bit of the
/// result. Every rank gives the same table.
struct CostTable {
  /// The rate that a batched orthogonalization achieves if the shorter side of its matrices is at most `short_side`.
  struct Rate {
    int64_t short_side;  ///< elements; the smaller of rows and columns
    int64_t gflops;      ///< 1e9 floating-point operations per second
  };

  std::string device;            ///< a name, for reports and errors
  std::vector<Rate> rates;       ///< ascending short_side; the last rate also holds for longer sides
  int64_t batch_ns = 0;          ///< nanoseconds to start one batched orthogonalization: its launches
  int64_t exchange_ns = 0;       ///< nanoseconds to start one ragged exchange
  int64_t message_ns = 0;        ///< nanoseconds per message of an exchange
  int64_t memory_mbps = 1;       ///< bandwidth of device memory, in 1e6 bytes per second
  int64_t intra_node_mbps = 1;   ///< between ranks of a node, per rank and direction, in 1e6 bytes per second
  int64_t inter_node_mbps = 1;   ///< between nodes, per rank and direction, in 1e6 bytes per second
  int32_t ranks_per_node = 8;    ///< consecutive ranks share a node: 0 to 7, 8 to 15, ...
  int64_t compute_bytes = 2;     ///< bytes per element while a matrix is orthogonalized
  int64_t overlap_percent = 80;  ///< how much of an exchange a computation at the same time really hides

  /// One H200 per rank, as measured; its links are estimates.
  static CostTable h200();
  /// Two cores of a server with AVX-512 per rank.
  static CostTable cpu();
  /// A built-in table ("h200", "cpu") or a JSON file as `muster tune` writes it. Throws InvalidArgument that names the
  /// file, the key and its value.
  static CostTable load(const std::string& name_or_path);
};

/// Throws InvalidArgument that names the field and its value, unless all fields are within their limits.
void validate(const CostTable& cost);

}  // namespace muster
