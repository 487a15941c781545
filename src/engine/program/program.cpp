#include "engine/program/program.h"

#include <algorithm>
#include <map>
#include <utility>

#include "engine/program/program_statistics.h"
#include "muster/error.h"
#include "plan/exchange.h"
#include "plan/replicas.h"
#include "plan/scratch.h"
#include "plan/statistics_routes.h"

namespace muster::engine {

namespace {

using plan::aligned;
using plan::kSlots;
using plan::kSumBytes;

// Where blocks lie if they are stored one after the other: `second` from `at` onwards.
std::vector<StridedBlock> dense(std::vector<StridedBlock> blocks, int64_t at = 0) {
  for (StridedBlock& block : blocks) {
    block.second = at;
    block.second_stride = block.columns;
    at += block.elements();
  }
  return blocks;
}

std::vector<StridedBlock> moved(std::vector<StridedBlock> blocks, int64_t by) {
  for (StridedBlock& block : blocks) block.second += by;
  return blocks;
}

class Compiler {
 public:
  Compiler(const plan::Catalog& catalog, const Plan& plan, int32_t rank, std::span<const int32_t> group_of,
           const std::vector<bool>& active, State& state)
      : catalog_(catalog),
        plan_(plan),
        rank_(rank),
        group_of_(group_of),
        active_(active),
        state_(state),
        wire_(byte_size(catalog.problem().wire)) {}

  Program run() {
    for (int32_t w = 0; w < static_cast<int32_t>(plan_.waves.size()); ++w) compile_wave(w);
    sums_.clear();
    hold_ranges();
    lay_out_arena();
    return std::move(program_);
  }

 private:
  const Shape& shape(int32_t parameter) const { return catalog_.problem().parameters[parameter].shape; }
  bool is_active(int32_t parameter) const { return active_.empty() || active_[parameter]; }

  static int64_t take(WaveProgram& wave, int64_t bytes) {
    const int64_t offset = wave.bytes;
    wave.bytes += aligned(bytes);
    return offset;
  }

  void compile_wave(int32_t w) {
    WaveProgram& wave = program_.waves.emplace_back();
    const plan::Exchange in = plan::exchange_in(catalog_, plan_, rank_, w, active_);
    const plan::Exchange out = plan::exchange_out(catalog_, plan_, rank_, w, active_);
    place_matrices(wave, w);
    place_sums(wave, in);

    // What was staged on the way in is free when the way out begins.
    const int64_t base = wave.bytes;
    wave.send_in = stage(wave, in.sends, wave.zero);
    wave.receive_in = stage(wave, in.receives, wave.zero);
    const int64_t end = std::exchange(wave.bytes, base);
    wave.send_out = stage_once(wave, out.sends, wave.zero_out);
    wave.receive_out = stage(wave, out.receives, wave.zero_out);
    wave.bytes = std::max(wave.bytes, end);

    compile_in(wave, in);
    update_other_replicas(wave, w);
    compile_out(wave, out);
    compile_lines(in, out, lines_at_, wave);
    for (auto& [key, batch] : home_) wave.home.push_back(std::move(batch));
  }

  std::vector<StagedMessage> stage(WaveProgram& wave, const std::vector<plan::Message>& messages,
                                   std::vector<ByteRange>& zero) {
    std::vector<StagedMessage> out;
    for (const plan::Message& message : messages) {
      const ByteRange span{take(wave, message.bytes), message.bytes};
      out.push_back({message.peer, span});
      if (message.padding_bytes > 0) zero.push_back(span);
    }
    return out;
  }

  // Replicas that get the same get it from one place.
  std::vector<StagedMessage> stage_once(WaveProgram& wave, const std::vector<plan::Message>& messages,
                                        std::vector<ByteRange>& zero) {
    std::map<std::vector<int64_t>, ByteRange> places;
    std::vector<StagedMessage> out;
    for (const plan::Message& message : messages) {
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
      const auto [place, is_new] = places.emplace(std::move(content), ByteRange{});
      if (is_new) {
        place->second = {take(wave, message.bytes), message.bytes};
        if (message.padding_bytes > 0) zero.push_back(place->second);
      }
      out.push_back({message.peer, place->second});
    }
    return out;
  }

  bool averages(const plan::Segment& segment) const {
    return segment.matrix >= 0 ? catalog_.class_at(segment.matrix).all_replicas : catalog_.problem().grad_sync;
  }

  void compile_in(WaveProgram& wave, const plan::Exchange& in) {
    std::vector<std::pair<int32_t, SumStep>> sums;  // by the rank they come from
    for_each_matrix(in.local, [&](int32_t j, std::span<const plan::Segment> segments) {
      if (averages(segments[0])) {
        for (const plan::Segment& segment : segments) {
          for (const StridedBlock& block : sum_blocks(segment)) sums.push_back({rank_, {segment.parameter, block, -1}});
        }
      } else if (const auto home = home_at_.find(j); home != home_at_.end()) {
        pack(home_[home->second.first].matrices[home->second.second].pack, segments, all_blocks(segments));
      } else if (j >= 0) {
        pack(wave.pack, segments, moved(all_blocks(segments), assembled_.at(j) / wire_));
      }
    });
    for (size_t i = 0; i < in.sends.size(); ++i) {
      const int64_t message = wave.send_in[i].range.offset;
      for_each_matrix(in.sends[i].segments, [&](int32_t j, std::span<const plan::Segment> segments) {
        if (averages(segments[0])) {
          for (const plan::Segment& segment : segments) {
            int64_t staged = message + segment.offset;
            for (const StridedBlock& block : blocks_of(segment)) {
              wave.gradients.push_back({segment.parameter, block, staged});
              staged += block.elements() * grad_bytes(segment);
            }
          }
          return;
        }
        const std::vector<StridedBlock> staged = dense(all_blocks(segments), (message + segments[0].offset) / wire_);
        if (assembled_.contains(j)) {
          // A piece that this rank assembles too was packed there.
          copy(wave.gather, moved(all_blocks(segments), assembled_.at(j) / wire_), staged);
        } else {
          pack(wave.pack, segments, staged);
        }
      });
    }
    for (size_t i = 0; i < in.receives.size(); ++i) {
      const int64_t message = wave.receive_in[i].range.offset;
      for (const plan::Segment& segment : in.receives[i].segments) {
        if (!averages(segment)) {
          copy(wave.assemble, staged_blocks(segment, message), matrix_blocks(segment));
          continue;
        }
        int64_t staged = message + segment.offset;
        for (const StridedBlock& block : sum_blocks(segment)) {
          sums.push_back({in.receives[i].peer, {segment.parameter, block, staged}});
          staged += block.elements() * grad_bytes(segment);
        }
      }
    }
    std::stable_sort(sums.begin(), sums.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    for (const auto& [rank, step] : sums) wave.sum.push_back(step);
  }

  void compile_out(WaveProgram& wave, const plan::Exchange& out) {
    for (const plan::Segment& segment : out.local) {
      if (segment.matrix < 0) {
        add_ranges(wave, segment.parameter, segment.piece.first_offset, segment.elements());
      } else if (const auto home = home_at_.find(segment.matrix); home != home_at_.end()) {
        apply(home_[home->second.first].matrices[home->second.second].apply, segment, blocks_of(segment));
      } else {
        apply(returns_weights(segment) ? wave.apply_first : wave.apply, segment, matrix_blocks(segment));
      }
    }
    std::vector<int64_t> staged;
    for (size_t i = 0; i < out.sends.size(); ++i) {
      const int64_t message = wave.send_out[i].range.offset;
      if (std::find(staged.begin(), staged.end(), message) != staged.end()) continue;
      staged.push_back(message);
      for (const plan::Segment& segment : out.sends[i].segments) {
        // Replicas store what they share alike: the holder's offsets are the owner's too.
        if (returns_weights(segment)) {
          add_weights(wave.weights_out, segment, message);
        } else {
          copy(wave.stage_out, matrix_blocks(segment), staged_blocks(segment, message));
        }
      }
    }
    for (size_t i = 0; i < out.receives.size(); ++i) {
      const int64_t message = wave.receive_out[i].range.offset;
      for (const plan::Segment& segment : out.receives[i].segments) {
        if (returns_weights(segment)) {
          add_weights(wave.weights_in, segment, message);
        } else {
          apply(wave.apply, segment, staged_blocks(segment, message));
        }
      }
    }
  }

  // Where every replica keeps momentum, those that do not send the update still follow it.
  void update_other_replicas(WaveProgram& wave, int32_t w) {
    for (int32_t j = 0; j < catalog_.matrix_count(); ++j) {
      const int32_t p = catalog_.parameter_of(j);
      if (plan_.wave[j] != w || !catalog_.class_at(j).each_momentum || !is_active(p)) continue;
      const Transport transport = plan_.waves[w].transport;
      const bool gathers = transport == Transport::kGather || transport == Transport::kGatherReduce;
      const plan::HolderSet& holders = catalog_.holders_of(j);
      const plan::Holder* const mine = holders.find(rank_);
      if (gathers || mine == nullptr || plan::in_each_replica(plan_, j)) continue;
      if (mine->replica == holders.source_replica(plan_.owner[j])) continue;
      const std::vector<layout::Run> shard = catalog_.partition(p).shard(mine->position);
      for (const layout::Overlap& piece :
           layout::overlaps(shard, catalog_.grid(p).runs(catalog_.index_in_parameter(j)))) {
        for (StridedBlock block : strided_blocks(piece, shape(p))) {
          block.second = PackStep::kNowhere;
          wave.pack.push_back({p, block, -1});
        }
      }
    }
  }

  // Calls back with the neighbouring segments of each matrix; with each range alone.
  template <typename Visit>
  static void for_each_matrix(const std::vector<plan::Segment>& segments, Visit visit) {
    for (size_t begin = 0; begin < segments.size();) {
      size_t end = begin + 1;
      const int32_t j = segments[begin].matrix;
      while (j >= 0 && end < segments.size() && segments[end].matrix == j) ++end;
      visit(j, std::span(segments).subspan(begin, end - begin));
      begin = end;
    }
  }

  bool returns_weights(const plan::Segment& segment) const {
    return segment.matrix < 0 || catalog_.class_at(segment.matrix).weights_back;
  }

  int64_t grad_bytes(const plan::Segment& segment) const {
    return byte_size(catalog_.problem().parameters[segment.parameter].grad_dtype);
  }

  // Where the averaged gradients of a matrix or a range come together, once.
  void place_sums(WaveProgram& wave, const plan::Exchange& in) {
    int64_t sum = wave.bytes / kSumBytes;
    const int64_t first = sum;
    const auto place = [&](const plan::Segment& segment) {
      if (!averages(segment)) return;
      const bool matrix = segment.matrix >= 0;
      const int64_t count = matrix ? catalog_.class_at(segment.matrix).matrix.elements() : segment.elements();
      if (!sums_.emplace(sum_key(segment), sum).second) return;
      wave.average.push_back({sum, count, catalog_.partition(segment.parameter).replicas()});
      if (matrix) {
        const int64_t momentum = state_.place_momentum(segment.matrix, whole_matrix(segment.matrix));
        wave.owner_momentum.push_back({segment.parameter, count, sum, momentum, assembled_.at(segment.matrix) / wire_});
      }
      sum += count;
    };
    for (const plan::Segment& segment : in.local) place(segment);
    for (const plan::Message& message : in.receives) {
      for (const plan::Segment& segment : message.segments) place(segment);
    }
    const int64_t bytes = (sum - first) * kSumBytes;
    if (bytes > 0) wave.sums.push_back({take(wave, bytes), bytes});
  }
  static std::pair<int32_t, int64_t> sum_key(const plan::Segment& segment) {
    return {segment.parameter, segment.matrix >= 0 ? -1 - segment.matrix : segment.piece.first_offset};
  }

  // Matrices that this rank assembles: those it owns, and where holders gather, those it holds. Those that it alone
  // holds, or it alone in its replica if each has an owner, stay at home.
  void place_matrices(WaveProgram& wave, int32_t w) {
    assembled_.clear();
    lines_at_.clear();
    sums_.clear();
    home_.clear();
    home_at_.clear();
    const Transport transport = plan_.waves[w].transport;
    const bool gathers = transport == Transport::kGather || transport == Transport::kGatherReduce;
    std::map<BatchKey, OwnedBatch> batches;
    auto own = [&](int32_t j, int64_t at) -> OwnedMatrix& {
      OwnedBatch& batch = batches[key_of(j)];
      batch.key = key_of(j);
      return batch.matrices.emplace_back(OwnedMatrix{-1, -1, at / wire_, -1, -1});
    };
    for (int32_t j = 0; j < catalog_.matrix_count(); ++j) {
      if (plan_.wave[j] != w || !is_active(catalog_.parameter_of(j))) continue;
      const bool owns = plan::owner_for(catalog_, plan_, j, rank_) == rank_;
      if (gathers && catalog_.class_at(j).all_replicas) throw Internal("a gather cannot average replicas");
      const plan::HolderSet& holders = catalog_.holders_of(j);
      const bool holds = holders.find(rank_) != nullptr;
      if (!owns && !(gathers && holds)) continue;
      const bool normuon = catalog_.class_at(j).matrix.normuon;
      const int32_t measured = plan_.owner[j] == rank_ ? j : -1;  // others may orthogonalize it too
      const bool keeps_lines = plan::keeps_all_lines(catalog_, catalog_.class_at(j), rank_);
      if (owns && holders.stays_home(rank_, plan::in_each_replica(plan_, j)) && keeps_lines) {
        HomeBatch& batch = home_[key_of(j)];
        batch.key = key_of(j);
        home_at_[j] = {batch.key, batch.matrices.size()};
        batch.matrices.push_back({catalog_.parameter_of(j), measured, normuon ? variance_of(j) : -1, {}, {}});
        continue;
      }
      assembled_[j] = take(wave, catalog_.class_at(j).matrix.elements() * wire_);
      if (!owns && transport != Transport::kGather) continue;
      OwnedMatrix& mine = own(j, assembled_[j]);
      mine.parameter = catalog_.parameter_of(j);
      mine.measured = measured;
      if (normuon && keeps_lines) mine.variance = variance_of(j);
      if (normuon && !keeps_lines) {
        mine.assembled_variance = take(wave, catalog_.class_at(j).matrix.lines() * kSumBytes);
        lines_at_[j] = mine.assembled_variance / kSumBytes;
      }
    }
    for (const ZeroMatrix& zero : plan_.waves[w].zeros) {
      if (zero.owner != rank_ || !is_active(catalog_.parameter_of(zero.like))) continue;
      const plan::Matrix& m = catalog_.class_at(zero.like).matrix;
      OwnedMatrix& mine = own(zero.like, clear(wave, m.elements() * wire_));
      if (m.normuon) mine.assembled_variance = clear(wave, std::max(m.rows, m.columns) * kSumBytes);
    }
    for (auto& [key, batch] : batches) wave.owned.push_back(std::move(batch));
  }
  // Where a matrix has its statistics: in State, or in what this rank keeps of its parameter's.
  int64_t variance_of(int32_t j) {
    const int32_t p = catalog_.parameter_of(j);
    const plan::Statistics* const statistics = catalog_.statistics(p);
    if (statistics == nullptr) return state_.place_variance(j);
    return statistics->part_of(catalog_.index_in_parameter(j), statistics->partition().position_of(rank_)).held;
  }
  static int64_t clear(WaveProgram& wave, int64_t bytes) {
    wave.zero.push_back({take(wave, bytes), bytes});
    return wave.zero.back().offset;
  }
  BatchKey key_of(int32_t j) const {
    const plan::Matrix& m = catalog_.class_at(j).matrix;
    return {m.rows, m.columns, group_of_[catalog_.parameter_of(j)], m.normuon, m.norm_axis};
  }

  // A matrix's blocks in its parameter, with `second` in the matrix.
  std::vector<StridedBlock> whole_matrix(int32_t j) const {
    std::vector<StridedBlock> out;
    const int32_t p = catalog_.parameter_of(j);
    for (const layout::Run& run : catalog_.grid(p).runs(catalog_.index_in_parameter(j))) {
      for (const StridedBlock& block :
           strided_blocks({run.box, run.offset, run.offset, run.stride, run.stride}, shape(p))) {
        out.push_back(block);
      }
    }
    return out;
  }

  // A segment's blocks, with `second` in the matrix.
  std::vector<StridedBlock> blocks_of(const plan::Segment& segment) const {
    if (segment.matrix >= 0) return strided_blocks(segment.piece, shape(segment.parameter));
    // A range of the shard: one row, wherever its elements are in the tensor.
    const int64_t first = segment.piece.first_offset;
    return {{1, segment.elements(), first, segment.elements(), first, segment.elements(), 0, 0}};
  }
  std::vector<StridedBlock> all_blocks(std::span<const plan::Segment> segments) const {
    std::vector<StridedBlock> out;
    for (const plan::Segment& segment : segments) {
      for (const StridedBlock& block : blocks_of(segment)) out.push_back(block);
    }
    return out;
  }
  std::vector<StridedBlock> sum_blocks(const plan::Segment& segment) const {
    const int64_t sum = sums_.at(sum_key(segment));
    if (segment.matrix >= 0) return moved(blocks_of(segment), sum);
    return dense(blocks_of(segment), sum);
  }
  // In the assembled matrix, or densely in the message that starts at a byte.
  std::vector<StridedBlock> matrix_blocks(const plan::Segment& segment) const {
    return moved(blocks_of(segment), assembled_.at(segment.matrix) / wire_);
  }
  std::vector<StridedBlock> staged_blocks(const plan::Segment& segment, int64_t message) const {
    return dense(blocks_of(segment), (message + segment.offset) / wire_);
  }

  void pack(std::vector<PackStep>& steps, std::span<const plan::Segment> segments,
            const std::vector<StridedBlock>& to) {
    const bool held = catalog_.problem().parameters[segments[0].parameter].state_keeper == StateKeeper::kHolders;
    int64_t momentum = held ? 0 : state_.place_momentum(segments[0].matrix, dense(to));
    for (const StridedBlock& block : to) {
      steps.push_back({segments[0].parameter, block, momentum});
      momentum += block.elements();
    }
  }

  static void copy(std::vector<CopyStep>& steps, const std::vector<StridedBlock>& from,
                   const std::vector<StridedBlock>& to) {
    for (size_t i = 0; i < from.size(); ++i) {
      steps.push_back(
          {from[i].rows, from[i].columns, from[i].second, from[i].second_stride, to[i].second, to[i].second_stride});
    }
  }

  void apply(std::vector<ApplyStep>& steps, const plan::Segment& segment, const std::vector<StridedBlock>& from) {
    state_.place_extra(segment.parameter, from, returns_weights(segment) || state_.stands_for(segment.parameter));
    for (const StridedBlock& block : from) steps.push_back({segment.parameter, segment.matrix, block});
  }

  void add_weights(std::vector<WeightStep>& steps, const plan::Segment& segment, int64_t message) const {
    int64_t staged = message + segment.offset;
    for (const StridedBlock& block : blocks_of(segment)) {
      steps.push_back({segment.parameter, block, staged});
      staged += block.elements() * byte_size(catalog_.problem().parameters[segment.parameter].dtype);
    }
  }

  // Elements first to first + count of the local shard, in pieces whose numbers in the tensor are neighbours.
  void add_ranges(WaveProgram& wave, int32_t parameter, int64_t first, int64_t count) {
    const auto sum = sums_.find({parameter, first});
    for (const StridedBlock& block : state_.shard(parameter)) {
      for (int64_t i = 0; i < block.rows; ++i) {
        const int64_t row = block.first + i * block.first_stride;
        const int64_t begin = std::max(row, first);
        const int64_t end = std::min(row + block.columns, first + count);
        if (begin >= end) continue;
        const int64_t index = block.index + i * block.index_stride + begin - row;
        (sum == sums_.end() ? wave.ranges : wave.summed_ranges)
            .push_back({parameter, begin, end - begin, index,
                        state_.place_moments(parameter, begin, end - begin, index),
                        sum == sums_.end() ? -1 : sum->second + begin - first});
      }
    }
  }

  // Elementwise parameters that each rank updates for itself: spread over the waves, to hide the exchanges, unless the
  // plan says when.
  void hold_ranges() {
    const ElementwiseOrder order = plan_.elementwise;
    const Problem& problem = catalog_.problem();
    std::vector<std::pair<int32_t, int64_t>> held;
    int64_t total = 0;
    for (int32_t p = 0; p < static_cast<int32_t>(problem.parameters.size()); ++p) {
      const layout::Partition& partition = catalog_.partition(p);
      if (!is_active(p) || is_matrix_algorithm(problem.parameters[p].algorithm)) continue;
      if (!catalog_.updated_in_place(p)) continue;
      const int32_t position = partition.position_of(rank_);
      if (position < 0) continue;
      held.push_back({p, partition.local_elements(position)});
      total += held.back().second;
    }
    const auto waves = static_cast<int64_t>(program_.waves.size());
    int64_t before = 0;
    for (const auto& [p, elements] : held) {
      if (elements == 0) continue;
      int64_t wave = std::min(waves - 1, before / (total / waves + 1));
      if (order != ElementwiseOrder::kInterleaved) wave = order == ElementwiseOrder::kFirst ? 0 : waves - 1;
      add_ranges(program_.waves[wave], p, 0, elements);
      before += elements;
    }
  }

  void lay_out_arena() {
    std::vector<int64_t> slot(kSlots);
    for (size_t w = 0; w < program_.waves.size(); ++w) {
      slot[w % kSlots] = std::max(slot[w % kSlots], program_.waves[w].bytes);
    }
    std::vector<int64_t> start(kSlots);
    for (size_t s = 0; s < kSlots; ++s) {
      start[s] = program_.arena_bytes;
      program_.arena_bytes += slot[s];
    }
    for (size_t w = 0; w < program_.waves.size(); ++w) program_.wave_offsets.push_back(start[w % kSlots]);
  }

  const plan::Catalog& catalog_;
  const Plan& plan_;
  const int32_t rank_;
  const std::span<const int32_t> group_of_;
  const std::vector<bool>& active_;
  State& state_;
  const int64_t wire_;
  Program program_;
  // Of the wave at hand: byte of each matrix, and element of f32 of each sum, by parameter and -1 - matrix or offset.
  std::map<int32_t, int64_t> assembled_;
  std::map<int32_t, int64_t> lines_at_;  // element of f32 of statistics that are assembled, by matrix
  std::map<std::pair<int32_t, int64_t>, int64_t> sums_;
  std::map<BatchKey, HomeBatch> home_;
  std::map<int32_t, std::pair<BatchKey, size_t>> home_at_;  // by matrix
};

}  // namespace

Program compile(const plan::Catalog& catalog, const Plan& plan, int32_t rank, std::span<const int32_t> group_of,
                const std::vector<bool>& active, State& state) {
  return Compiler(catalog, plan, rank, group_of, active, state).run();
}

}  // namespace muster::engine
