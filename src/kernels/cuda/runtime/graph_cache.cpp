#include "kernels/cuda/runtime/graph_cache.h"

#include <algorithm>

namespace muster::kernels::cuda {

cudaGraphExec_t GraphCache::use(uint64_t key, int64_t step) {
  const auto found = std::ranges::find(graphs_, key, &Entry::key);
  if (found == graphs_.end()) return nullptr;
  found->last_used = step;
  return found->graph;
}

void GraphCache::insert(uint64_t key, cudaGraphExec_t graph, int64_t step) {
  if (graphs_.size() >= kMostGraphs) {
    const auto oldest = std::ranges::min_element(graphs_, {}, &Entry::last_used);
    destroy_(oldest->graph);
    graphs_.erase(oldest);
  }
  graphs_.push_back({key, graph, step});
}

void GraphCache::drop() {
  for (const Entry& entry : graphs_) destroy_(entry.graph);
  graphs_.clear();
  seen_.clear();
}

}  // namespace muster::kernels::cuda
