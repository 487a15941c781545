// The machine that a simulation runs on: what a cost table says of one rank, and what connects the ranks.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "muster/cost.h"

namespace muster::sim {

struct Cluster {
  std::string name;
  std::string source;  // where its figures come from
  // One rank, and its links: `intra_node_mbps` is within an NVLink domain of `ranks_per_node`, `inter_node_mbps` what a
  // rank has of the adapters of its node. Plans for the cluster are made with this table.
  CostTable cost;
  int32_t nics_per_node = 1;  // the ranks of a node share them, neighbours the same one
  int64_t nic_mbps = 1;       // 1e6 bytes a second, one direction
  int64_t launch_ns = 0;      // one call beside the batches: pack, assemble, stage, apply, update
  int64_t memory_bytes = 0;   // of a rank; 0: nobody said

  // A built-in name (cluster_names()) or a JSON file. `cost` is a table as CostTable::load takes it, in place of the
  // one that the cluster names; empty: that one. Throws InvalidArgument naming the file, the field and its value.
  static Cluster load(const std::string& name_or_path, const std::string& cost);
};

std::string cluster_names();  // "h100-ib, gb300"

// The same from the text of a file. `where` opens every message.
Cluster parse_cluster(std::string_view text, const std::string& where, const std::string& cost);

}  // namespace muster::sim
