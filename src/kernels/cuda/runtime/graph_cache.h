// Executable graphs by step key.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cuda_runtime_api.h>
#include <set>
#include <vector>

namespace muster::kernels::cuda {

// Owns at most kMostGraphs graphs, one per key, and evicts the one that was used in the earliest step. A step is
// captured only once its key has been seen, that is, after one step with that key was carried out call by call.
class GraphCache {
 public:
  static constexpr size_t kMostGraphs = 8;
  using Destroy = cudaError_t (*)(cudaGraphExec_t);

  // CUDA defers the destruction of a graph until its replays are done.
  explicit GraphCache(Destroy destroy = cudaGraphExecDestroy) : destroy_(destroy) {}
  GraphCache(const GraphCache&) = delete;
  GraphCache& operator=(const GraphCache&) = delete;
  ~GraphCache() { drop(); }

  bool seen(uint64_t key) const { return seen_.contains(key); }
  void mark_seen(uint64_t key) { seen_.insert(key); }

  // The graph to be launched in `step`; null if there is none.
  cudaGraphExec_t use(uint64_t key, int64_t step);
  // Takes ownership of a graph that is launched in `step`. The cache must not have one for the key.
  void insert(uint64_t key, cudaGraphExec_t graph, int64_t step);
  // Forgets which keys were seen, too.
  void drop();
  size_t size() const { return graphs_.size(); }

 private:
  struct Entry {
    uint64_t key = 0;
    cudaGraphExec_t graph = nullptr;
    int64_t last_used = 0;  // step
  };

  Destroy destroy_;
  std::vector<Entry> graphs_;
  std::set<uint64_t> seen_;
};

}  // namespace muster::kernels::cuda
