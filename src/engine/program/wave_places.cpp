// Where a wave puts matrices, statistics, sums and messages in its part of the arena. plan/scratch.h counts the same.
#include <algorithm>
#include <map>
#include <utility>

#include "engine/program/peer_strategies.h"
#include "engine/program/wave_compiler.h"
#include "plan/normuon_statistics_routes.h"
#include "plan/replicas.h"
#include "plan/scratch.h"

namespace muster::engine {

namespace {

// Equal for messages that hold the same bytes.
std::vector<int64_t> content_of(const plan::Message& message) {
  std::vector<int64_t> content{message.bytes};
  for (const plan::LineSegment& lines : message.lines) {
    content.insert(content.end(), {lines.matrix, lines.offset, lines.part.line, lines.part.count});
  }
  for (const plan::Segment& segment : message.segments) {
    content.insert(content.end(), {segment.parameter, segment.matrix, segment.offset});
    const layout::Box& box = segment.piece.box;
    content.insert(content.end(), box.begin.begin(), box.begin.begin() + box.dims);
    content.insert(content.end(), box.end.begin(), box.end.begin() + box.dims);
  }
  return content;
}

}  // namespace

// A matrix of which nothing travels stays at home; every other matrix that this rank owns or gathers is assembled.
void WaveCompiler::place_matrices() {
  std::map<BatchKey, OwnedBatch> batches;
  for (int32_t j = 0; j < catalog_.matrix_count(); ++j) {
    if (!input_.in_wave(j, number_)) continue;
    const bool gathers = gathers_as_holder(input_, j);
    const bool owns = plan::owner_for(catalog_, input_.plan, j, rank_) == rank_;
    if (!owns && !gathers) continue;
    if (owns && catalog_.holders_of(j).stays_home(rank_, plan::in_each_replica(input_.plan, j)) &&
        plan::keeps_all_lines(catalog_, class_at(j), rank_)) {
      place_home(j);
      continue;
    }
    assembled_[j] = program_.reserve(class_at(j).matrix.elements() * wire_bytes_).offset / wire_bytes_;
    if (!owns && !holders_orthogonalize(wave())) continue;
    OwnedBatch& batch = batches[batch_key(input_, j)];
    batch.key = batch_key(input_, j);
    batch.matrices.push_back(placed_owned(j));
  }
  add_zero_matrices(input_, number_, program_, batches);
  for (auto& [key, batch] : batches) program_.owned.push_back(std::move(batch));
  place_rule_state();
}

// Batch after batch, so that the state of a batch lies at equal distances. The owner of a matrix measures it.
void WaveCompiler::place_rule_state() {
  const auto place = [&](const BatchKey& key, auto& matrices) {
    if (!key.rule) return;
    for (auto& matrix : matrices) matrix.rule_state = state_.reserve_rule_state(matrix.measured);
  };
  for (OwnedBatch& batch : program_.owned) place(batch.key, batch.matrices);
  for (auto& [key, batch] : home_) place(key, batch.matrices);
}

void WaveCompiler::place_home(int32_t matrix) {
  const BatchKey key = batch_key(input_, matrix);
  HomeBatch& batch = home_[key];
  batch.key = key;
  home_at_[matrix] = {key, batch.matrices.size()};
  batch.matrices.push_back({.parameter = catalog_.parameter_of(matrix),
                            .measured = input_.plan.owner[matrix] == rank_ ? matrix : -1,
                            .variance = key.normuon ? place_variance(matrix) : -1});
}

OwnedMatrix WaveCompiler::placed_owned(int32_t matrix) {
  OwnedMatrix placed{.parameter = catalog_.parameter_of(matrix), .assembled = assembled_.at(matrix)};
  // If several ranks orthogonalize it, only the owner reports.
  if (input_.plan.owner[matrix] == rank_) placed.measured = matrix;
  if (!class_at(matrix).matrix.normuon) return placed;
  if (plan::keeps_all_lines(catalog_, class_at(matrix), rank_)) {
    placed.variance = place_variance(matrix);
  } else {
    placed.assembled_variance = program_.reserve(class_at(matrix).matrix.lines() * plan::kSumBytes).offset;
    assembled_statistics_[matrix] = placed.assembled_variance / plan::kSumBytes;
  }
  return placed;
}

// An element of State's statistics, or of the holder's statistics of the parameter.
int64_t WaveCompiler::place_variance(int32_t matrix) {
  const plan::NormuonStatistics* const held = catalog_.statistics(catalog_.parameter_of(matrix));
  if (held == nullptr) return state_.reserve_variance(matrix);
  return held->part_of(catalog_.index_in_parameter(matrix), held->partition().position_of(rank_)).held;
}

// Every matrix or range whose gradients are averaged here has one sum.
void WaveCompiler::place_sums(const plan::Exchange& in) {
  const int64_t begin = program_.bytes / plan::kSumBytes;
  int64_t end = begin;
  const auto place = [&](const plan::Segment& segment) {
    if (!averages(segment) || sums_.contains(sum_key(segment))) return;
    place_sum(segment, end);
    end += program_.average.back().count;
  };
  for (const plan::Segment& segment : in.local) place(segment);
  for (const plan::Message& message : in.receives) {
    for (const plan::Segment& segment : message.segments) place(segment);
  }
  if (end > begin) program_.sums.push_back(program_.reserve((end - begin) * plan::kSumBytes));
}

void WaveCompiler::place_sum(const plan::Segment& segment, int64_t sum) {
  sums_[sum_key(segment)] = sum;
  const int32_t p = segment.parameter;
  const int32_t j = segment.matrix;
  const int64_t count = j >= 0 ? class_at(j).matrix.elements() : segment.elements();
  program_.average.push_back({.sum = sum, .count = count, .replicas = catalog_.partition(p).replicas()});
  if (j < 0) return;
  const Blocks matrix = strided_blocks(catalog_.grid(p).runs(catalog_.index_in_parameter(j)), shape(p));
  program_.owner_momentum.push_back({.parameter = p,
                                     .count = count,
                                     .sum = sum,
                                     .momentum = state_.keeps_momentum(p) ? state_.reserve_momentum(j, matrix) : 0,
                                     .assembled = assembled_.at(j)});
}

// Messages out take the place of messages in, which are gone by then.
void WaveCompiler::place_messages(const plan::Exchange& in, const plan::Exchange& out) {
  const int64_t begin = program_.bytes;
  program_.send_in = place_each(in.sends);
  program_.receive_in = place_each(in.receives);
  const int64_t end_in = std::exchange(program_.bytes, begin);
  program_.send_out = place_equal_once(out.sends);
  program_.receive_out = place_each(out.receives);
  program_.bytes = std::max(program_.bytes, end_in);

  PeerPadding& padding = program_.padding;
  clear_padding(in.sends, program_.send_in, padding.clear_in);
  clear_padding(in.receives, program_.receive_in, padding.clear_in);
  clear_padding(out.sends, program_.send_out, padding.clear_out);
  clear_padding(out.receives, program_.receive_out, padding.clear_out);
}

std::vector<StagedMessage> WaveCompiler::place_each(const Messages& messages) {
  std::vector<StagedMessage> staged;
  for (const plan::Message& message : messages) {
    staged.push_back({.peer = message.peer, .range = program_.reserve(message.bytes)});
  }
  return staged;
}

// Replicas that receive equal messages receive them from one place.
std::vector<StagedMessage> WaveCompiler::place_equal_once(const Messages& messages) {
  std::map<std::vector<int64_t>, ByteRange> places;
  std::vector<StagedMessage> staged;
  for (const plan::Message& message : messages) {
    const auto [place, is_new] = places.emplace(content_of(message), ByteRange{});
    if (is_new) place->second = program_.reserve(message.bytes);
    staged.push_back({.peer = message.peer, .range = place->second});
  }
  return staged;
}

}  // namespace muster::engine
