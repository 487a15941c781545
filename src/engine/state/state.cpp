#include "engine/state/state.h"

#include <algorithm>

#include <fmt/format.h>

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

StateType state_type(Dtype dtype) { return dtype == Dtype::kF32 ? StateType::kF32 : StateType::kBf16; }

// Places start on a cache line.
int64_t aligned(int64_t elements) { return (elements + 31) / 32 * 32; }

int64_t lines(const plan::Matrix& m) { return m.norm_axis == NormAxis::kRows ? m.rows : m.columns; }

// What a rank holds of a tensor: `first` of the blocks is in its storage.
std::vector<StridedBlock> held_blocks(const layout::Partition& partition, int32_t rank) {
  std::vector<StridedBlock> out;
  const int32_t position = partition.position_of(rank);
  if (position < 0) return out;
  for (const layout::Run& run : partition.shard(position)) {
    const layout::Overlap all{run.box, run.offset, run.offset, run.stride, run.stride};
    for (const StridedBlock& block : strided_blocks(all, partition.shape())) out.push_back(block);
  }
  return out;
}

}  // namespace

int64_t weight_bytes(WeightForm form) { return form == WeightForm::kF32 ? 4 : 2; }

int64_t extra_bytes(WeightForm form) {
  if (form == WeightForm::kBf16Master) return 4;
  return form == WeightForm::kBf16Mantissa ? 2 : 0;
}

State::State(const plan::Catalog& catalog, const Plan& plan, int32_t rank, const OptimizerOptions& options,
             std::span<const ParameterMemory> memory, kernels::Kernels& kernels)
    : steps(options.counters != nullptr ? options.counters[0] : own_counters_[0]),
      seed(options.counters != nullptr ? options.counters[1] : own_counters_[1]),
      catalog_(catalog),
      plan_(plan),
      rank_(rank),
      momentum_dtype_(options.momentum),
      momentum_width_(byte_size(options.momentum)),
      memory_(memory),
      kernels_(kernels),
      given_updates_(options.updates),
      own_counters_{0, static_cast<int64_t>(options.seed)} {
  const size_t parameters = catalog.problem().parameters.size();
  for (size_t p = 0; p < parameters; ++p) {
    numbers_.emplace(catalog.problem().parameters[p].name, static_cast<int32_t>(p));
  }
  for (Pieces* pieces : {&momentum_pieces_, &variance_pieces_, &first_pieces_, &second_pieces_, &extra_pieces_}) {
    pieces->resize(parameters);
  }
  variance_lines_.resize(parameters);
  for (int32_t j = 0; j < catalog.matrix_count(); ++j) {
    const plan::Matrix& m = catalog.class_at(j).matrix;
    if (m.normuon) variance_lines_[catalog.parameter_of(j)] += lines(m);
  }
}

int64_t State::place_momentum(int32_t matrix, std::span<const StridedBlock> blocks) {
  const auto [place, is_new] = momentum_places_.emplace(matrix, momentum_elements_);
  if (!is_new) return place->second;
  require_open();
  const int32_t p = catalog_.parameter_of(matrix);
  // Where every replica orthogonalizes for itself, every replica keeps momentum.
  const Transport transport = plan_.waves[plan_.wave[matrix]].transport;
  const bool to_owner = transport == Transport::kRagged || transport == Transport::kPadded;
  const bool once = to_owner && !plan::in_each_replica(plan_, matrix);
  for (const StridedBlock& block : blocks) {
    momentum_pieces_[p].push_back({block, place->second + block.second, block.second_stride, once || stands_for(p)});
    momentum_elements_ += block.elements();
  }
  momentum_elements_ = aligned(momentum_elements_);
  return place->second;
}

int64_t State::place_variance(int32_t matrix) {
  const auto [place, is_new] = variance_places_.emplace(matrix, variance_elements_);
  if (!is_new) return place->second;
  require_open();
  const int32_t p = catalog_.parameter_of(matrix);
  int64_t index = 0;  // the lines of a parameter's matrices lie end to end
  for (int32_t j = catalog_.first_matrix(p); j < matrix; ++j) {
    if (catalog_.class_at(j).matrix.normuon) index += lines(catalog_.class_at(j).matrix);
  }
  const int64_t count = lines(catalog_.class_at(matrix).matrix);
  const StridedBlock block{1, count, 0, count, 0, count, index, count};
  variance_pieces_[p].push_back({block, variance_elements_, count, plan_.owner[matrix] == rank_});
  variance_elements_ += aligned(count);
  return place->second;
}

State::Moments State::place_moments(int32_t parameter, int64_t first, int64_t count, int64_t index) {
  const auto [place, is_new] = moment_places_.emplace(std::pair{parameter, first}, Moments{});
  if (!is_new) return place->second;
  require_open();
  const StridedBlock block{1, count, first, count, 0, count, index, count};
  if (held(parameter)) {
    place_extra(parameter, {&block, 1}, stands_for(parameter));
    return place->second;
  }
  place->second.first = first_elements_;
  first_pieces_[parameter].push_back({block, first_elements_, count, true});
  first_elements_ += aligned(count);
  if (catalog_.problem().parameters[parameter].algorithm == Algorithm::kAdamW) {
    place->second.second = second_elements_;
    second_pieces_[parameter].push_back({block, second_elements_, count, true});
    second_elements_ += aligned(count);
  }
  place_extra(parameter, {&block, 1}, true);
  return place->second;
}

void State::place_extra(int32_t parameter, std::span<const StridedBlock> blocks, bool counts) {
  if (allocated_ || extra_bytes(memory_[parameter].form) == 0) return;
  for (const StridedBlock& block : blocks)
    extra_pieces_[parameter].push_back({block, block.first, block.first_stride, counts});
}

void State::require_open() const {
  if (allocated_) throw Internal("state: a place that the first program did not ask for");
}

void State::allocate() {
  allocated_ = true;
  momentum_ = {kernels_, momentum_elements_ * momentum_width_};
  variance_ = {kernels_, variance_elements_ * 4};
  first_ = {kernels_, first_elements_ * 4};
  second_ = {kernels_, second_elements_ * 4};
  if (given_updates_ == nullptr) updates_ = {kernels_, static_cast<int64_t>(memory_.size()) * 8};
}

State::MomentumRows State::momentum(int32_t parameter, const StridedBlock& block, int64_t place) {
  if (!held(parameter)) return {owner_momentum(place), block.columns};
  return {static_cast<std::byte*>(memory_[parameter].momentum) + block.first * momentum_width_, block.first_stride};
}

State::MomentPointers State::moments(int32_t parameter, int64_t first, const Moments& place) {
  const auto at = [](float* base, int64_t offset) { return base == nullptr || offset < 0 ? nullptr : base + offset; };
  if (!held(parameter)) return {at(first_.as<float>(), place.first), at(second_.as<float>(), place.second)};
  const ParameterMemory& memory = memory_[parameter];
  return {at(static_cast<float*>(memory.momentum), first), at(static_cast<float*>(memory.second), first)};
}

bool State::stands_for(int32_t parameter) const {
  const layout::Partition& partition = catalog_.partition(parameter);
  return partition.replica(partition.position_of(rank_)) == 0;
}

std::vector<StridedBlock> State::shard(int32_t parameter) const {
  return held_blocks(catalog_.partition(parameter), rank_);
}

// What this rank keeps of a parameter's statistics.
std::vector<State::Piece> State::statistics_pieces(int32_t parameter) const {
  std::vector<Piece> out;
  for (const StridedBlock& block : held_blocks(catalog_.statistics(parameter)->partition(), rank_)) {
    out.push_back({block, block.first, block.first_stride, stands_for(parameter)});
  }
  return out;
}

std::vector<StateShard> State::slices() {
  std::vector<StateShard> out;
  for (int32_t p = 0; p < static_cast<int32_t>(memory_.size()); ++p) add_slices(p, out);
  add_slices(kOptimizer, out);
  return out;
}

std::optional<StateShard> State::slice(const std::string& name) {
  const std::string parameter = name.substr(0, std::min(name.rfind(':'), name.size()));
  const auto found = numbers_.find(parameter);
  if (found == numbers_.end() && !parameter.empty()) return std::nullopt;
  std::vector<StateShard> some;
  add_slices(parameter.empty() ? kOptimizer : found->second, some);
  const auto it = std::ranges::find(some, name, [](const StateShard& slice) { return slice.info.name; });
  return it == some.end() ? std::nullopt : std::optional(std::move(*it));
}

void State::add_slices(int32_t p, std::vector<StateShard>& out) {
  kernels::Kernels* const device = kernels_.stream() != nullptr ? &kernels_ : nullptr;
  const auto add = [&](std::string_view suffix, StateType type, Shape shape) -> StateShard& {
    const std::string_view of = p == kOptimizer ? "" : std::string_view(catalog_.problem().parameters[p].name);
    return out.emplace_back(StateShard{{fmt::format("{}:{}", of, suffix), type, std::move(shape)}, {}});
  };
  const auto fill = [&](StateShard& slice, void* store, const std::vector<Piece>& pieces) {
    const int64_t width = byte_size(slice.info.type);
    for (const Piece& piece : pieces) {
      slice.pieces.push_back({piece.block.rows, piece.block.columns, piece.block.index, piece.block.index_stride,
                              static_cast<std::byte*>(store) + piece.at * width, piece.stride, piece.counts, device});
    }
  };
  const auto count = [&](StateShard& slice, int64_t* value, kernels::Kernels* where) {
    slice.pieces.push_back({1, 1, 0, 1, reinterpret_cast<std::byte*>(value), 1, rank_ == 0, where});
  };
  if (p == kOptimizer) {
    count(add("steps", StateType::kI64, {}), &steps, nullptr);
    count(add("seed", StateType::kI64, {}), &seed, nullptr);
    return;
  }
  const Parameter& parameter = catalog_.problem().parameters[p];
  const ParameterMemory& memory = memory_[p];
  std::vector<Piece> shard_pieces;
  for (const StridedBlock& block : shard(p))
    shard_pieces.push_back({block, block.first, block.first_stride, stands_for(p)});
  fill(add("weight", state_type(parameter.dtype), parameter.shape), memory.weight, shard_pieces);
  if (extra_bytes(memory.form) > 0) {
    const bool master = memory.form == WeightForm::kBf16Master;
    StateShard& slice =
        add(master ? "master" : "mantissa", master ? StateType::kF32 : StateType::kU16, parameter.shape);
    // Every holder takes what is loaded; the rank that updates it stands for it.
    std::vector<Piece> all = shard_pieces;
    for (Piece& piece : all) piece.counts = false;
    fill(slice, memory.extra, all);
    fill(slice, memory.extra, extra_pieces_[p]);
  }
  const bool own = !held(p);
  if (is_matrix_algorithm(parameter.algorithm)) {
    fill(add("momentum", state_type(momentum_dtype_), parameter.shape), own ? momentum_.data() : memory.momentum,
         own ? momentum_pieces_[p] : shard_pieces);
    if (variance_lines_[p] > 0) {
      fill(add("variance", StateType::kF32, {variance_lines_[p]}), own ? variance_.data() : memory.statistics,
           own ? variance_pieces_[p] : statistics_pieces(p));
    }
  } else {
    fill(add("first", StateType::kF32, parameter.shape), own ? first_.data() : memory.momentum,
         own ? first_pieces_[p] : shard_pieces);
    if (parameter.algorithm == Algorithm::kAdamW) {
      fill(add("second", StateType::kF32, parameter.shape), own ? second_.data() : memory.second,
           own ? second_pieces_[p] : shard_pieces);
    }
  }
  count(add("updates", StateType::kI64, {}), updates() + p, device);
}

}  // namespace muster::engine
