#include "engine/step/holdings.h"

#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/hash.h"
#include "kernels/kernel_calls.h"
#include "muster/error.h"

namespace muster::engine {

Holdings::Holdings(const plan::Catalog& catalog, int32_t own_rank) : rank(own_rank) {
  for (int32_t p = 0; p < static_cast<int32_t>(catalog.problem().parameters.size()); ++p) {
    const layout::Partition& partition = catalog.partition(p);
    const int32_t position = partition.position_of(rank);
    elements.push_back(position < 0 ? 0 : partition.local_elements(position));
    replica.push_back(position < 0 ? 0 : partition.replica(position));
    replicas.push_back(partition.replicas());
    base::Hash key;
    if (elements.back() > 0) {
      const layout::Run first = partition.shard(position)[0];
      for (int d = 0; d < first.box.dims; ++d) key.add(first.box.begin[d]);
      key.add(elements.back());
    }
    shard_keys.push_back(key.value());
  }
}

void check_memory(const Problem& problem, const Holdings& holdings, std::span<const ParameterMemory> memory,
                  int32_t groups) {
  const size_t parameters = problem.parameters.size();
  if (memory.size() != parameters) {
    throw InvalidArgument(fmt::format("memory for {} parameters, expected {}", memory.size(), parameters));
  }
  for (size_t p = 0; p < parameters; ++p) check_memory(problem, holdings, p, memory[p], groups);
}

void check_memory(const Problem& problem, const Holdings& holdings, size_t p, const ParameterMemory& mine,
                  int32_t groups) {
  const Parameter& parameter = problem.parameters[p];
  const int32_t rank = holdings.rank;
  const auto refuse = [&](const std::string& why) {
    throw InvalidArgument(fmt::format("parameter '{}': {}", parameter.name, why));
  };
  if (mine.group < 0 || mine.group >= groups) {
    refuse(fmt::format("group {}: expected 0 to {}", mine.group, groups - 1));
  }
  if (parameter.dtype == Dtype::kF16 || parameter.grad_dtype == Dtype::kF16) {
    refuse("f16: expected f32 or bf16");
  }
  if ((mine.form == WeightForm::kF32) != (parameter.dtype == Dtype::kF32)) {
    refuse(fmt::format("its form stores {}, its dtype is {}", mine.form == WeightForm::kF32 ? "f32" : "bf16",
                       parameter.dtype == Dtype::kF32 ? "f32" : "bf16"));
  }
  if (holdings.any(p) && mine.weight == nullptr) {
    refuse(fmt::format("no memory for the {} elements of rank {}", holdings.elements[p], rank));
  }
  if (holdings.any(p) && mine.extra == nullptr && kernels::extra_bytes(mine.form) > 0) {
    refuse(fmt::format("no {} on rank {}", mine.form == WeightForm::kBf16Master ? "master" : "mantissa", rank));
  }
  if (parameter.state_keeper != StateKeeper::kHolders) return;
  if (holdings.any(p) && mine.momentum == nullptr && keeps_momentum(parameter)) {
    refuse(fmt::format("no memory for momentum on rank {}", rank));
  }
  if (holdings.any(p) && mine.second == nullptr && parameter.algorithm == Algorithm::kAdamW) {
    refuse(fmt::format("no memory for second moments on rank {}", rank));
  }
  const StatisticsLayout statistics = statistics_layout(problem, static_cast<int32_t>(p), rank);
  if (!statistics.shape.empty() && element_count(statistics.local_shape) > 0 && mine.statistics == nullptr) {
    refuse(
        fmt::format("no memory for statistics of shape [{}] on rank {}", fmt::join(statistics.local_shape, ","), rank));
  }
}

}  // namespace muster::engine
