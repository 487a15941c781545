#include "run/workload.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <thread>

#include <fmt/format.h>

#include "kernels/bf16.h"
#include "muster/error.h"
#include "run/hash.h"
#include "run/rows.h"

namespace muster::run {
namespace {

using layout::Interval;
using layout::Partition;
using layout::Run;

// In place of a step.
constexpr int64_t kWeights = -1;
constexpr int64_t kRows = -2;  // what the rows of gradients have at every step

float rounded(Dtype dtype, float v) { return dtype == Dtype::kF32 ? v : kernels::from_bf16(kernels::to_bf16(v)); }

template <typename Visit>
void for_each_row(const Partition& partition, int32_t rank, Visit visit) {
  if (rank == kWhole) {
    visit(Row{0, 0, element_count(partition.shape())});
    return;
  }
  const int32_t position = partition.position_of(rank);
  if (position < 0) return;
  for (const Run& run : partition.shard(position)) for_each_row(partition.shape(), run, visit);
}

void write_row(Dtype dtype, const Values& values, const Row& row, void* out) {
  if (dtype == Dtype::kF32) {
    float* const to = static_cast<float*>(out) + row.offset;
    for (int64_t i = 0; i < row.count; ++i) to[i] = values.at(row.first + i);
  } else {
    uint16_t* const to = static_cast<uint16_t*>(out) + row.offset;
    for (int64_t i = 0; i < row.count; ++i) to[i] = kernels::to_bf16(values.at(row.first + i));
  }
}

}  // namespace

Workload::Workload(const Problem& problem, const WorkloadOptions& options) : problem_(problem), options_(options) {
  for (const Parameter& p : problem.parameters) {
    if (p.dtype == Dtype::kF16 || p.grad_dtype == Dtype::kF16) {
      throw InvalidArgument(fmt::format("parameter '{}': {} are f16; this runs f32 and bf16", p.name,
                                        p.dtype == Dtype::kF16 ? "weights" : "gradients"));
    }
    partitions_.emplace_back(problem.meshes[p.layout.mesh], p.layout, p.shape, p.name);
  }
}

// The seed of values: one per (parameter, step) and, where gradients are averaged, rank.
uint64_t Workload::stream(int32_t parameter, int64_t step, int32_t rank) const {
  const uint64_t own = problem_.grad_sync && step >= 0 ? static_cast<uint64_t>(rank) + 1 : 0;
  uint64_t stream = mix(options_.seed + kGolden);
  for (const uint64_t part : {static_cast<uint64_t>(parameter), static_cast<uint64_t>(step), own}) {
    stream = mix(stream + part * kGolden + 1);
  }
  return stream;
}

Values Workload::weight_values(int32_t parameter) const {
  return {stream(parameter, kWeights, kWhole), options_.weight_size};
}

Values Workload::gradient_values(int32_t parameter, int64_t step, int32_t rank) const {
  return {problem_.parameters[parameter], options_.spectrum, stream(parameter, step, rank),
          stream(parameter, kRows, rank), options_.gradient_size};
}

// By a hash: of a (parameter, step), a quarter has no gradient at all and a quarter has some, of which half the shards
// give theirs. Replicas agree, unless each has a gradient of its own.
bool Workload::gives_gradient(int32_t parameter, int32_t position, int64_t step) const {
  if (!options_.missing) return true;
  constexpr int32_t kAnyRank = -2;
  const uint64_t kind = mix(stream(parameter, step, kAnyRank)) % 4;
  if (kind > 1) return true;
  const Partition& partition = partitions_[parameter];
  const int32_t shard = problem_.grad_sync ? position : partition.first_replica(position);
  return kind == 1 && mix(stream(parameter, step, kAnyRank) + static_cast<uint64_t>(shard) + 1) % 2 == 0;
}

bool Workload::has_gradient(int32_t parameter, int32_t rank, int64_t step) const {
  const Partition& partition = partitions_[parameter];
  if (rank != kWhole) {
    const int32_t position = partition.position_of(rank);
    return position >= 0 && partition.local_elements(position) > 0 && gives_gradient(parameter, position, step);
  }
  for (int32_t position = 0; position < partition.positions(); ++position) {
    if (partition.local_elements(position) > 0 && gives_gradient(parameter, position, step)) return true;
  }
  return false;
}

int64_t Workload::elements(int32_t parameter, int32_t rank) const {
  const Partition& partition = partitions_[parameter];
  if (rank == kWhole) return element_count(partition.shape());
  const int32_t position = partition.position_of(rank);
  return position < 0 ? 0 : partition.local_elements(position);
}

Dtype Workload::gradient_dtype(int32_t parameter, int32_t rank) const {
  return rank == kWhole ? Dtype::kF32 : problem_.parameters[parameter].grad_dtype;
}

void Workload::fill_weights(int32_t parameter, int32_t rank, void* out) const {
  const Dtype dtype = problem_.parameters[parameter].dtype;
  const Values values = weight_values(parameter);
  for_each_row(partitions_[parameter], rank, [&](const Row& row) { write_row(dtype, values, row, out); });
}

void Workload::fill_gradients(int32_t parameter, int32_t rank, int64_t step, void* out) const {
  if (rank == kWhole) {
    const std::vector<float> all = gradients(parameter, {0, elements(parameter, kWhole)}, step);
    std::memcpy(out, all.data(), all.size() * sizeof(float));
    return;
  }
  const Dtype dtype = problem_.parameters[parameter].grad_dtype;
  const Values values = gradient_values(parameter, step, rank);
  for_each_row(partitions_[parameter], rank, [&](const Row& row) { write_row(dtype, values, row, out); });
}

std::vector<float> Workload::weights(int32_t parameter, Interval elements) const {
  const Dtype dtype = problem_.parameters[parameter].dtype;
  const Values values = weight_values(parameter);
  std::vector<float> out(static_cast<size_t>(elements.size()));
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = rounded(dtype, values.at(elements.begin + static_cast<int64_t>(i)));
  }
  return out;
}

std::vector<float> Workload::gradients(int32_t parameter, Interval elements, int64_t step) const {
  const Dtype dtype = problem_.parameters[parameter].grad_dtype;
  const Partition& partition = partitions_[parameter];
  std::vector<float> out(static_cast<size_t>(elements.size()));
  if (!problem_.grad_sync) {
    const Values values = gradient_values(parameter, step, kWhole);
    for (size_t i = 0; i < out.size(); ++i) {
      out[i] = rounded(dtype, values.at(elements.begin + static_cast<int64_t>(i)));
    }
  }
  // Where ranks average, those that give something add to zeros; else those that do not give leave zeros.
  for (int32_t rank = 0; rank < problem_.ranks; ++rank) {
    const int32_t position = partition.position_of(rank);
    if (position < 0 || gives_gradient(parameter, position, step) != problem_.grad_sync) continue;
    const Values values = gradient_values(parameter, step, rank);
    for_each_row(partition, rank, [&](const Row& row) {
      const int64_t begin = std::max(row.first, elements.begin);
      const int64_t end = std::min(row.first + row.count, elements.end);
      for (int64_t e = begin; e < end; ++e) {
        float& element = out[e - elements.begin];
        element = problem_.grad_sync ? element + rounded(dtype, values.at(e)) : 0;
      }
    });
  }
  if (!problem_.grad_sync) return out;
  if (partition.replicas() > 1) {
    for (float& sum : out) sum /= static_cast<float>(partition.replicas());
  }
  return out;
}

void Workload::take_shard(int32_t parameter, int32_t rank, const void* whole, void* shard) const {
  const int64_t width = byte_size(problem_.parameters[parameter].dtype);
  for_each_row(partitions_[parameter], rank, [&](const Row& row) {
    std::memcpy(static_cast<std::byte*>(shard) + row.offset * width,
                static_cast<const std::byte*>(whole) + row.first * width, static_cast<size_t>(row.count * width));
  });
}

int64_t Workload::element_at(int32_t parameter, int32_t rank, int64_t offset) const {
  int64_t element = -1;
  for_each_row(partitions_[parameter], rank, [&](const Row& row) {
    if (offset >= row.offset && offset < row.offset + row.count) element = row.first + offset - row.offset;
  });
  return element;
}

Problem on_one_rank(Problem problem) {
  problem.ranks = 1;
  problem.meshes = {{"one", {{"only", 1}}, {}}};
  problem.grad_sync = false;
  for (Parameter& p : problem.parameters) {
    p.layout = {0, {Placement::replicate()}, {}};
    p.grad_dtype = Dtype::kF32;
  }
  return problem;
}

std::vector<Group> Workload::groups() const {
  std::vector<Group> groups(3);
  for (Group& group : groups) {
    group.weight_decay = 0.1;
    group.decay = Decay::kCautious;
    group.coefficients = options_.coefficients;
  }
  for (int32_t g = 0; g < 3; ++g) groups[g].lr = workload_lr(g, 0);
  groups[2].beta2 = 0.99;
  return groups;
}

int32_t workload_group(Algorithm algorithm) {
  if (is_matrix_algorithm(algorithm)) return 0;
  return algorithm == Algorithm::kAdamW ? 1 : 2;
}

double workload_lr(int32_t group, int64_t step) {
  constexpr double kFirst[] = {0.02, 0.002, 0.0005};
  return kFirst[group] / (1 + 0.25 * static_cast<double>(step % 8));
}

namespace {

// Where values of a parameter go.
struct Target {
  int32_t parameter = 0;
  void* data = nullptr;
  int64_t bytes = 0;
};

// Billions of values for a device would take a core minutes: all of them make some, which are then written in order.
template <typename Fill>
void fill_targets(std::span<const Target> targets, kernels::Kernels& kernels, const Fill& fill) {
  const size_t together = kernels.async_device() == nullptr ? 1 : std::max(1U, std::thread::hardware_concurrency());
  std::vector<std::vector<std::byte>> hosts(together);
  for (size_t first = 0; first < targets.size(); first += together) {
    const size_t count = std::min(together, targets.size() - first);
    const auto make = [&](size_t i) {
      const Target& target = targets[first + i];
      hosts[i].resize(static_cast<size_t>(target.bytes));
      fill(target.parameter, hosts[i].data());
    };
    std::vector<std::thread> threads;
    for (size_t i = 1; i < count; ++i) threads.emplace_back(make, i);
    make(0);
    for (std::thread& thread : threads) thread.join();
    for (size_t i = 0; i < count; ++i) {
      const Target& target = targets[first + i];
      if (target.bytes > 0) kernels.write(target.data, hosts[i].data(), {1, target.bytes, 0, 0});
    }
  }
}

}  // namespace

Weights::Weights(const Workload& workload, int32_t rank, kernels::Kernels& kernels)
    : problem_(workload.problem()), kernels_(kernels) {
  std::vector<Target> targets;
  for (int32_t p = 0; p < static_cast<int32_t>(problem_.parameters.size()); ++p) {
    bytes_.push_back(workload.elements(p, rank) * byte_size(problem_.parameters[p].dtype));
    shards_.emplace_back(kernels, bytes_.back());
    targets.push_back({p, shards_.back().data(), bytes_.back()});
  }
  fill_targets(targets, kernels, [&](int32_t p, void* host) { workload.fill_weights(p, rank, host); });
}

std::vector<ParameterMemory> Weights::memory() {
  std::vector<ParameterMemory> memory;
  for (size_t p = 0; p < shards_.size(); ++p) {
    const Parameter& parameter = problem_.parameters[p];
    memory.push_back({.weight = shards_[p].data(),
                      .form = parameter.dtype == Dtype::kF32 ? WeightForm::kF32 : WeightForm::kBf16,
                      .group = workload_group(parameter.algorithm)});
  }
  return memory;
}

std::vector<std::byte> Weights::shard(int32_t parameter) const {
  std::vector<std::byte> host(static_cast<size_t>(bytes_[parameter]));
  if (!host.empty()) kernels_.read(host.data(), shards_[parameter].data(), {1, bytes_[parameter], 0, 0});
  return host;
}

Gradients::Gradients(const Workload& workload, int32_t rank, kernels::Kernels& kernels, int64_t kept)
    : workload_(workload), rank_(rank), kernels_(kernels), slots_(static_cast<size_t>(kept)) {}

std::span<void* const> Gradients::at(int64_t step) {
  Slot& slot = slots_[static_cast<size_t>(step % std::ssize(slots_))];
  if (slot.step != step) fill(slot, step);
  return slot.pointers;
}

void Gradients::fill(Slot& slot, int64_t step) {
  const bool first = slot.step < 0;
  slot.step = step;
  slot.pointers.clear();
  std::vector<Target> targets;
  for (int32_t p = 0; p < static_cast<int32_t>(workload_.problem().parameters.size()); ++p) {
    const int64_t bytes = workload_.elements(p, rank_) * byte_size(workload_.gradient_dtype(p, rank_));
    if (first) slot.shards.emplace_back(kernels_, bytes);
    const bool given = bytes > 0 && workload_.has_gradient(p, rank_, step);
    slot.pointers.push_back(given ? slot.shards[p].data() : nullptr);
    if (given) targets.push_back({p, slot.pointers.back(), bytes});
  }
  fill_targets(targets, kernels_, [&](int32_t p, void* host) { workload_.fill_gradients(p, rank_, step, host); });
}

}  // namespace muster::run
