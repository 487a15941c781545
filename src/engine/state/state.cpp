#include "engine/state/state.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/alignment.h"
#include "engine/program/peer_strategies.h"
#include "muster/error.h"
#include "plan/replicas.h"

namespace muster {

int64_t byte_size(StateType type) {
  switch (type) {
    case StateType::kF32:
      return 4;
    case StateType::kBf16:
    case StateType::kU16:
      return 2;
    case StateType::kI64:
      return 8;
  }
  throw Internal("byte_size: not a type: " + std::to_string(static_cast<int>(type)));
}

}  // namespace muster

namespace muster::engine {

namespace {

constexpr int64_t kAlignElements = 32;  // places start on a cache line

StateType state_type(Dtype dtype) { return dtype == Dtype::kF32 ? StateType::kF32 : StateType::kBf16; }

// What a rank holds of a tensor: `first` of the blocks is in its storage.
std::vector<StridedBlock> local_blocks(const layout::Partition& partition, int32_t rank) {
  const int32_t position = partition.position_of(rank);
  if (position < 0) return {};
  return strided_blocks(partition.shard(position), partition.shape());
}

// `count` elements of a shard from element `first` on. The first is number `index` of the tensor.
StridedBlock line(int64_t first, int64_t count, int64_t index) {
  return {.rows = 1, .columns = count, .first = first, .first_stride = count, .index = index, .index_stride = count};
}

}  // namespace

State::State(const StateInput& input)
    : steps(input.options.counters != nullptr ? input.options.counters[0] : own_counters_[0]),
      seed(input.options.counters != nullptr ? input.options.counters[1] : own_counters_[1]),
      catalog_(input.catalog),
      plan_(input.plan),
      rank_(input.rank),
      momentum_dtype_(input.options.momentum),
      memory_(input.memory),
      kernels_(input.kernels),
      rule_entries_(engine::rule_entries(input.catalog.problem(), input.options, input.memory)),
      given_updates_(input.options.updates),
      own_counters_{0, static_cast<int64_t>(input.options.seed)} {
  const std::vector<Parameter>& parameters = catalog_.problem().parameters;
  for (size_t p = 0; p < parameters.size(); ++p) {
    parameter_of_name_.emplace(parameters[p].name, static_cast<int32_t>(p));
  }
  momentum_.width = byte_size(momentum_dtype_);
  for (Store* store : {&momentum_, &variance_, &first_, &second_}) store->parts.resize(parameters.size());
  rule_parts_.resize(parameters.size());
  extra_parts_.resize(parameters.size());
  variance_lines_.resize(parameters.size());
  for (int32_t j = 0; j < catalog_.matrix_count(); ++j) {
    const plan::Matrix& m = catalog_.class_at(j).matrix;
    if (m.normuon) variance_lines_[catalog_.parameter_of(j)] += m.lines();
  }
}

int64_t State::reserve_momentum(int32_t matrix, std::span<const StridedBlock> blocks) {
  const auto [place, is_new] = momentum_places_.emplace(matrix, momentum_.elements);
  if (!is_new) return place->second;
  require_open();
  const int32_t p = catalog_.parameter_of(matrix);
  // Where each replica orthogonalizes for itself, each replica keeps momentum.
  const bool one_owner = !holders_gather(plan_.waves[plan_.wave[matrix]]) && !plan::in_each_replica(plan_, matrix);
  for (StridedBlock block : blocks) {
    block.first = place->second + block.second;
    block.first_stride = block.second_stride;
    momentum_.parts[p].push_back({block, one_owner || is_primary(p)});
    momentum_.elements += block.elements();
  }
  momentum_.elements = base::round_up(momentum_.elements, kAlignElements);
  return place->second;
}

int64_t State::reserve_variance(int32_t matrix) {
  const auto [place, is_new] = variance_places_.emplace(matrix, variance_.elements);
  if (!is_new) return place->second;
  require_open();
  const int32_t p = catalog_.parameter_of(matrix);
  int64_t index = 0;  // in the tensor, the lines of a parameter's matrices are consecutive
  for (int32_t j = catalog_.first_matrix(p); j < matrix; ++j) {
    if (catalog_.class_at(j).matrix.normuon) index += catalog_.class_at(j).matrix.lines();
  }
  const int64_t count = catalog_.class_at(matrix).matrix.lines();
  reserve_line(variance_, p, line(0, count, index), plan_.owner[matrix] == rank_);
  return place->second;
}

State::MomentPlaces State::reserve_moments(int32_t parameter, int64_t first, int64_t count, int64_t index) {
  const auto [place, is_new] = moment_places_.emplace(std::pair{parameter, first}, MomentPlaces{});
  if (!is_new) return place->second;
  require_open();
  const StridedBlock block = line(first, count, index);
  if (holders_keep(parameter)) {
    reserve_extra(parameter, {&block, 1}, is_primary(parameter));
    return place->second;
  }
  place->second.first = reserve_line(first_, parameter, block, true);
  if (catalog_.problem().parameters[parameter].algorithm == Algorithm::kAdamW) {
    place->second.second = reserve_line(second_, parameter, block, true);
  }
  reserve_extra(parameter, {&block, 1}, true);
  return place->second;
}

void State::reserve_extra(int32_t parameter, std::span<const StridedBlock> blocks, bool primary) {
  if (allocated_ || kernels::extra_bytes(memory_[parameter].form) == 0) return;
  for (const StridedBlock& block : blocks) extra_parts_[parameter].push_back({block, primary});
}

int64_t State::reserve_line(Store& store, int32_t parameter, StridedBlock block, bool primary) {
  block.first = store.elements;
  store.parts[parameter].push_back({block, primary});
  store.elements += base::round_up(block.columns, kAlignElements);
  return block.first;
}

void State::require_open() const {
  if (allocated_) throw Internal("state: the program of all parameters did not reserve this place");
}

void State::allocate() {
  allocated_ = true;
  for (Store* store : {&momentum_, &variance_, &first_, &second_, &rule_}) {
    store->memory = {kernels_, store->elements * store->width};
  }
  if (given_updates_ == nullptr) updates_ = {kernels_, static_cast<int64_t>(memory_.size()) * 8};
}

State::MomentumRows State::momentum(int32_t parameter, const StridedBlock& block, int64_t place) {
  if (!keeps_momentum(parameter)) return {};
  if (!holders_keep(parameter)) return {owner_momentum(place), block.columns};
  return {static_cast<std::byte*>(memory_[parameter].momentum) + block.first * momentum_.width, block.first_stride};
}

State::MomentPointers State::moments(int32_t parameter, int64_t first, const MomentPlaces& places) {
  const auto at = [](void* base, int64_t element) {
    return base == nullptr || element < 0 ? nullptr : static_cast<float*>(base) + element;
  };
  if (!holders_keep(parameter))
    return {at(first_.memory.data(), places.first), at(second_.memory.data(), places.second)};
  return {at(memory_[parameter].momentum, first), at(memory_[parameter].second, first)};
}

std::vector<StridedBlock> State::shard_blocks(int32_t parameter) const {
  return local_blocks(catalog_.partition(parameter), rank_);
}

bool State::is_primary(int32_t parameter) const {
  const layout::Partition& partition = catalog_.partition(parameter);
  return partition.replica(partition.position_of(rank_)) == 0;
}

std::vector<StateShard> State::shards() {
  std::vector<StateShard> out;
  const auto add = [&](std::vector<StateShard> shards) {
    for (StateShard& shard : shards) out.push_back(std::move(shard));
  };
  for (int32_t p = 0; p < static_cast<int32_t>(memory_.size()); ++p) add(parameter_shards(p));
  add(optimizer_shards());
  return out;
}

std::optional<StateShard> State::find_shard(const std::string& name) {
  const std::string parameter = name.substr(0, std::min(name.rfind(':'), name.size()));
  const auto found = parameter_of_name_.find(parameter);
  if (found == parameter_of_name_.end() && !parameter.empty()) return std::nullopt;
  for (StateShard& shard : parameter.empty() ? optimizer_shards() : parameter_shards(found->second)) {
    if (shard.info.name == name) return std::move(shard);
  }
  return std::nullopt;
}

std::vector<StateShard> State::optimizer_shards() {
  return {counter_shard(":steps", &steps, nullptr), counter_shard(":seed", &seed, nullptr)};
}

std::vector<StateShard> State::parameter_shards(int32_t p) {
  const Parameter& parameter = catalog_.problem().parameters[p];
  const ParameterMemory& memory = memory_[p];
  const auto named = [&](std::string_view kind) { return fmt::format("{}:{}", parameter.name, kind); };
  std::vector<StateShard> out;
  const auto add = [&](std::string_view kind, StateType type, const Stored& stored) {
    out.push_back(make_shard({named(kind), type, parameter.shape}, stored));
  };
  add("weight", state_type(parameter.dtype), {memory.weight, local_parts(p, catalog_.partition(p))});
  if (memory.form == WeightForm::kBf16Master) add("master", StateType::kF32, stored_extra(p));
  if (memory.form == WeightForm::kBf16Mantissa) add("mantissa", StateType::kU16, stored_extra(p));
  if (is_matrix_algorithm(parameter.algorithm)) {
    if (keeps_momentum(p)) add("momentum", state_type(momentum_dtype_), stored(p, momentum_, memory.momentum));
    for (StateShard& shard : rule_shards(p)) out.push_back(std::move(shard));
    if (variance_lines_[p] > 0) {
      out.push_back(make_shard({named("variance"), StateType::kF32, {variance_lines_[p]}}, stored_variance(p)));
    }
  } else {
    add("first", StateType::kF32, stored(p, first_, memory.momentum));
    if (parameter.algorithm == Algorithm::kAdamW) add("second", StateType::kF32, stored(p, second_, memory.second));
  }
  out.push_back(counter_shard(named("updates"), updates() + p, device()));
  return out;
}

StateShard State::make_shard(StateInfo info, const Stored& stored) const {
  const int64_t width = byte_size(info.type);
  StateShard shard{std::move(info), {}};
  for (const auto& [block, primary] : stored.parts) {
    shard.blocks.push_back({.rows = block.rows,
                            .columns = block.columns,
                            .index = block.index,
                            .index_stride = block.index_stride,
                            .data = static_cast<std::byte*>(stored.memory) + block.first * width,
                            .stride = block.first_stride,
                            .primary = primary,
                            .device = device()});
  }
  return shard;
}

StateShard State::counter_shard(std::string name, int64_t* counter, kernels::Kernels* device) const {
  const StateBlock one{.rows = 1,
                       .columns = 1,
                       .index = 0,
                       .index_stride = 1,
                       .data = reinterpret_cast<std::byte*>(counter),
                       .stride = 1,
                       .primary = rank_ == 0,
                       .device = device};
  return {{std::move(name), StateType::kI64, {}}, {one}};
}

State::Parts State::local_parts(int32_t parameter, const layout::Partition& partition) const {
  Parts parts;
  for (const StridedBlock& block : local_blocks(partition, rank_)) parts.push_back({block, is_primary(parameter)});
  return parts;
}

State::Stored State::stored(int32_t parameter, const Store& store, void* holders_memory) const {
  if (!holders_keep(parameter)) return {store.memory.data(), store.parts[parameter]};
  return {holders_memory, local_parts(parameter, catalog_.partition(parameter))};
}

State::Stored State::stored_variance(int32_t parameter) const {
  if (!holders_keep(parameter)) return {variance_.memory.data(), variance_.parts[parameter]};
  return {memory_[parameter].statistics, local_parts(parameter, catalog_.statistics(parameter)->partition())};
}

// Import fills the whole shard; of replicas, the rank that updates an element has its primary copy.
State::Stored State::stored_extra(int32_t parameter) const {
  Parts parts = local_parts(parameter, catalog_.partition(parameter));
  for (Part& part : parts) part.primary = false;
  parts.insert(parts.end(), extra_parts_[parameter].begin(), extra_parts_[parameter].end());
  return {memory_[parameter].extra, std::move(parts)};
}

}  // namespace muster::engine
