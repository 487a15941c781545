#include "engine/step/agreement.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "base/hash.h"
#include "engine/step/differing_ranks.h"
#include "engine/step/equality_check.h"
#include "engine/step/rules.h"
#include "muster/error.h"
#include "plan/plan_hash.h"
#include "version.h"

namespace muster::engine {

namespace {

// Something that all ranks must have the same of.
struct Shared {
  std::string_view what;
  uint64_t fingerprint = 0;
};

// All but the parameters, in the order in which a difference is reported.
std::vector<Shared> shared_values(const Problem& problem, const Plan& plan, const OptimizerOptions& options) {
  base::Hash version;
  version.add(std::string_view(kVersion));
  base::Hash chosen;
  for (const int64_t value : {static_cast<int64_t>(problem.wire), static_cast<int64_t>(problem.grad_sync),
                              static_cast<int64_t>(options.momentum), static_cast<int64_t>(options.seed),
                              static_cast<int64_t>(options.overlap), static_cast<int64_t>(options.graph),
                              static_cast<int64_t>(options.groups.size())}) {
    chosen.add(value);
  }
  for (const RowScaling& scaling : options.row_scaling) {
    chosen.add(static_cast<int64_t>(scaling.parameter));
    for (const int32_t number : scaling.factor_of_row) chosen.add(static_cast<int64_t>(number));
  }
  return {{"versions of Muster", version.value()},
          {"cost tables", plan::cost_fingerprint(options.plan.cost)},
          {"options", chosen.value()},
          {"rules", rules_fingerprint(options)},
          {"plan options", plan.hash}};
}

// Throws InvalidArgument that says what differs. All ranks together.
[[noreturn]] void refuse_difference(const std::vector<Shared>& mine, Communicator& communicator) {
  for (const Shared& value : mine) {
    std::vector<uint64_t> all(static_cast<size_t>(communicator.size()));
    communicator.all_gather(&value.fingerprint, all.data(), sizeof value.fingerprint, "compare options")->wait();
    std::vector<int64_t> others;
    for (size_t r = 0; r < all.size(); ++r) {
      if (all[r] != all[0]) others.push_back(static_cast<int64_t>(r));
    }
    if (others.empty()) continue;
    throw InvalidArgument(
        fmt::format("ranks disagree: same parameters, but other {} on {} than on rank 0", value.what, named(others)));
  }
  throw Internal("ranks disagree on nothing");
}

}  // namespace

void agree_on_plan(const Problem& problem, const Plan& plan, const OptimizerOptions& options,
                   std::span<const ParameterMemory> memory, Communicator& communicator) {
  const auto ranks = static_cast<size_t>(communicator.size());
  const std::vector<Shared> shared = shared_values(problem, plan, options);
  base::Hash everything;
  for (const Shared& value : shared) everything.add(value.fingerprint);
  std::vector<uint64_t> fingerprints = plan::parameter_fingerprints(problem);
  for (size_t p = 0; p < fingerprints.size(); ++p) {
    base::Hash hash;
    hash.add(fingerprints[p]);
    hash.add(static_cast<int64_t>(memory[p].form));
    hash.add(static_cast<int64_t>(memory[p].group));
    fingerprints[p] = hash.value();
    everything.add(fingerprints[p]);
  }
  const uint64_t mine[] = {everything.value(), fingerprints.size()};
  std::vector<uint64_t> all(2 * ranks);
  communicator.all_gather(mine, all.data(), sizeof mine, "compare plans")->wait();
  bool same = true;
  for (size_t r = 0; r < ranks; ++r) {
    same = same && all[2 * r] == all[0];
    if (all[2 * r + 1] == all[1]) continue;
    throw InvalidArgument(
        fmt::format("ranks disagree: rank 0 has {} parameters and rank {} has {}", all[1], r, all[2 * r + 1]));
  }
  if (same) return;
  std::vector<uint64_t> others(fingerprints.size() * ranks);
  communicator
      .all_gather(fingerprints.data(), others.data(), static_cast<int64_t>(fingerprints.size() * sizeof(uint64_t)),
                  "compare parameters")
      ->wait();
  for (size_t p = 0; p < fingerprints.size(); ++p) {
    for (size_t r = 0; r < ranks; ++r) {
      if (others[r * fingerprints.size() + p] == others[p]) continue;
      throw InvalidArgument(
          fmt::format("ranks disagree: parameter {} ('{}' on rank {}) is not the same on ranks 0 and {}", p,
                      problem.parameters[p].name, communicator.rank(), r));
    }
  }
  refuse_difference(shared, communicator);
}

void agree_on_replicas(const Problem& problem, const Holdings& holdings, std::span<const ParameterMemory> memory,
                       kernels::Kernels& kernels, Communicator& communicator) {
  constexpr int64_t kChunk = int64_t{16} << 20;
  std::vector<std::byte> copy;
  std::vector<int64_t> words(problem.parameters.size());
  std::vector<int64_t> fingerprints(problem.parameters.size());
  for (size_t p = 0; p < words.size(); ++p) {
    const int32_t replicas = holdings.replicas[p];
    if (replicas == 1 || !holdings.any(p)) continue;
    const ParameterMemory& mine = memory[p];
    base::Hash hash;
    hash.add(holdings.shard_keys[p]);
    const auto add = [&](const void* data, int64_t width) {
      const int64_t bytes = holdings.elements[p] * width;
      for (int64_t at = 0; at < bytes; at += kChunk) {
        copy.resize(static_cast<size_t>(std::min(kChunk, bytes - at)));
        kernels.read(copy.data(), static_cast<const std::byte*>(data) + at,
                     {1, static_cast<int64_t>(copy.size()), 0, 0});
        hash.add(std::span<const std::byte>(copy));
      }
    };
    add(mine.weight, kernels::weight_bytes(mine.form));
    if (kernels::extra_bytes(mine.form) > 0) add(mine.extra, kernels::extra_bytes(mine.form));
    fingerprints[p] = static_cast<int64_t>(hash.value());
    words[p] = contribution(hash.value(), holdings.replica[p], replicas);
  }
  communicator.all_reduce(words, ReduceOp::kSum, "compare replicas")->wait();
  for (size_t p = 0; p < words.size(); ++p) {
    if (words[p] == 0) continue;
    std::vector<int64_t> all(static_cast<size_t>(communicator.size()));
    communicator.all_gather(&fingerprints[p], all.data(), sizeof fingerprints[p], "name replicas")->wait();
    const std::string& name = problem.parameters[p].name;
    throw InvalidArgument({fmt::format("parameter '{}': replicas start from different weights{}; give all of them one "
                                       "rank's, or a layout that says they differ",
                                       name, differing(first_replicas(problem, problem.parameters[p]), all)),
                           ErrorCode::kReplicaWeightsDiffer, name});
  }
}

}  // namespace muster::engine
