#include "plan/hash.h"

#include <bit>
#include <string_view>

#include "plan/catalog.h"
#include "version.h"

namespace muster::plan {

namespace {

class Hash {
 public:
  void add(uint64_t value) {
    // The finalizer of splitmix64 over a running sum: cheap, and every bit of the input reaches every bit of the state.
    state_ += value + 0x9e3779b97f4a7c15;
    state_ = (state_ ^ (state_ >> 30)) * 0xbf58476d1ce4e5b9;
    state_ = (state_ ^ (state_ >> 27)) * 0x94d049bb133111eb;
    state_ ^= state_ >> 31;
  }
  void add(int64_t value) { add(static_cast<uint64_t>(value)); }
  void add(int32_t value) { add(static_cast<int64_t>(value)); }
  void add(std::string_view text) {
    add(static_cast<uint64_t>(text.size()));
    for (const char c : text) add(static_cast<uint64_t>(static_cast<unsigned char>(c)));
  }
  template <typename T>
  void add(const std::vector<T>& values) {
    add(static_cast<uint64_t>(values.size()));
    for (const T& value : values) add(value);
  }
  uint64_t value() const { return state_; }

 private:
  uint64_t state_ = 0;
};

}  // namespace

std::vector<uint64_t> parameter_fingerprints(const Problem& problem) {
  std::vector<uint64_t> meshes;
  for (const Mesh& mesh : problem.meshes) {
    Hash hash;
    hash.add(std::string_view(mesh.name));
    hash.add(static_cast<uint64_t>(mesh.axes.size()));
    for (const MeshAxis& axis : mesh.axes) {
      hash.add(std::string_view(axis.name));
      hash.add(axis.size);
    }
    hash.add(mesh.ranks);
    meshes.push_back(hash.value());
  }
  std::vector<uint64_t> out;
  for (const Parameter& p : problem.parameters) {
    Hash hash;
    hash.add(meshes[p.layout.mesh]);
    hash.add(std::string_view(p.name));
    hash.add(std::string_view(kind_key(p)));
    hash.add(p.output_dim);
    hash.add(static_cast<int32_t>(p.scale_shape));
    hash.add(std::bit_cast<uint64_t>(p.multiplier));
    out.push_back(hash.value());
  }
  return out;
}

uint64_t plan_hash(const Problem& problem, const CostTable& cost, const Plan& plan) {
  Hash hash;
  hash.add(std::string_view(kVersion));
  hash.add(problem.ranks);
  hash.add(static_cast<int32_t>(problem.wire));
  hash.add(static_cast<int32_t>(problem.grad_sync));
  hash.add(parameter_fingerprints(problem));
  hash.add(static_cast<uint64_t>(cost.rates.size()));
  for (const CostTable::Rate& rate : cost.rates) {
    hash.add(rate.short_side);
    hash.add(rate.gflops);
  }
  for (const int64_t value :
       {cost.batch_ns, cost.exchange_ns, cost.message_ns, cost.memory_mbps, cost.intra_node_mbps, cost.inter_node_mbps,
        int64_t{cost.ranks_per_node}, cost.compute_bytes, cost.overlap_percent}) {
    hash.add(value);
  }
  hash.add(static_cast<int32_t>(plan.strategy));
  hash.add(static_cast<int32_t>(plan.wave_order));
  hash.add(static_cast<int32_t>(plan.elementwise));
  hash.add(plan.owner);
  hash.add(plan.wave);
  hash.add(static_cast<uint64_t>(plan.waves.size()));
  for (const Wave& wave : plan.waves) {
    hash.add(static_cast<int32_t>(wave.transport));
    hash.add(static_cast<uint64_t>(wave.zeros.size()));
    for (const ZeroMatrix& zero : wave.zeros) {
      hash.add(zero.like);
      hash.add(zero.owner);
    }
  }
  for (const ElementShare& share : plan.shares) {
    hash.add(plan.families[share.family]);
    hash.add(share.ranks);
    hash.add(share.cuts);
  }
  return hash.value();
}

}  // namespace muster::plan
