#include "plan/kind_key.h"

#include <vector>

namespace muster::plan {

namespace {

void put_list(std::string& key, const std::vector<int64_t>& values) {
  put(key, static_cast<int64_t>(values.size()));
  for (const int64_t value : values) put(key, value);
}

void put_blocks(std::string& key, const std::vector<Block>& blocks) {
  put(key, static_cast<int64_t>(blocks.size()));
  for (const Block& block : blocks) {
    put(key, block.size);
    put(key, block.normuon ? *block.normuon : 2);
    put(key, block.norm_axis ? static_cast<int64_t>(*block.norm_axis) : 3);
  }
}

}  // namespace

std::string kind_key(const Parameter& p) {
  std::string key;
  put_list(key, p.shape);
  put(key, static_cast<int64_t>(p.dtype) * 16 + static_cast<int64_t>(p.grad_dtype));
  put(key, static_cast<int64_t>(p.algorithm) * 16 + static_cast<int64_t>(p.norm_axis));
  put(key, static_cast<int64_t>(p.state_keeper));
  put(key, p.rule.workspace_bytes);
  put(key, p.rule.momentum);
  put(key, p.layout.mesh);
  put(key, static_cast<int64_t>(p.layout.placements.size()));
  for (const Placement& placement : p.layout.placements) {
    put(key, static_cast<int64_t>(placement.kind));
    put(key, placement.dim);
    put(key, placement.split_factor);
    put_list(key, placement.sizes);
  }
  put_list(key, std::vector<int64_t>(p.layout.order.begin(), p.layout.order.end()));
  put_list(key, p.matrices.view);
  put(key, p.matrices.flatten);
  put_blocks(key, p.matrices.rows);
  put_blocks(key, p.matrices.columns);
  return key;
}

}  // namespace muster::plan
