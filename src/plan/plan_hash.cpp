#include "plan/plan_hash.h"

#include "base/hash.h"
#include "plan/kind_key.h"
#include "version.h"

namespace muster::plan {

std::vector<uint64_t> parameter_fingerprints(const Problem& problem) {
  std::vector<uint64_t> meshes;
  for (const Mesh& mesh : problem.meshes) {
    base::Hash hash;
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
    base::Hash hash;
    hash.add(meshes[p.layout.mesh]);
    hash.add(std::string_view(p.name));
    hash.add(std::string_view(kind_key(p)));
    hash.add(p.output_dim);
    hash.add(static_cast<int32_t>(p.scale_shape));
    hash.add(p.multiplier);
    out.push_back(hash.value());
  }
  return out;
}

uint64_t cost_fingerprint(const CostTable& cost) {
  base::Hash hash;
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
  return hash.value();
}

uint64_t plan_hash(const Problem& problem, const CostTable& cost, const Plan& plan) {
  base::Hash hash;
  hash.add(std::string_view(kVersion));
  hash.add(problem.ranks);
  hash.add(static_cast<int32_t>(problem.wire));
  hash.add(static_cast<int32_t>(problem.grad_sync));
  hash.add(parameter_fingerprints(problem));
  hash.add(cost_fingerprint(cost));
  hash.add(static_cast<int32_t>(plan.strategy));
  hash.add(static_cast<int32_t>(plan.wave_order));
  hash.add(static_cast<int32_t>(plan.elementwise));
  hash.add(plan.scratch_cap);
  hash.add(plan.in_flight);
  hash.add(plan.owner);
  hash.add(plan.wave);
  hash.add(static_cast<uint64_t>(plan.each_replica.size()));
  for (const bool each : plan.each_replica) hash.add(static_cast<int32_t>(each));
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
