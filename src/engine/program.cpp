#include "engine/program.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "muster/error.h"
#include "plan/exchange.h"

namespace muster::engine {

namespace {

constexpr int64_t kAlign = 64;
constexpr int64_t kF32Bytes = 4;
constexpr size_t kInFlight = 3;

int64_t aligned(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

class Compiler {
 public:
  Compiler(const plan::Catalog& catalog, const Plan& plan, int32_t rank)
      : catalog_(catalog), plan_(plan), rank_(rank), wire_(byte_size(catalog.problem().wire)) {}

  Program run() {
    for (int32_t w = 0; w < static_cast<int32_t>(plan_.waves.size()); ++w) compile_wave(w);
    sums_.clear();
    hold_ranges();
    lay_out_arena();
    return std::move(program_);
  }

 private:
  const Shape& shape(int32_t parameter) const { return catalog_.problem().parameters[parameter].shape; }

  static int64_t take(WaveProgram& wave, int64_t bytes) {
    const int64_t offset = wave.bytes;
    wave.bytes += aligned(bytes);
    return offset;
  }

  std::vector<Transfer> stage(WaveProgram& wave, const std::vector<plan::Message>& messages) {
    std::vector<Transfer> out;
    for (const plan::Message& message : messages) {
      const Span span{take(wave, message.bytes), message.bytes};
      out.push_back({message.peer, span});
      if (message.padding_bytes > 0) wave.zero.push_back(span);
    }
    return out;
  }

  void compile_wave(int32_t w) {
    WaveProgram& wave = program_.waves.emplace_back();
    const plan::Exchange in = plan::exchange_in(catalog_, plan_, rank_, w);
    const plan::Exchange out = plan::exchange_out(catalog_, plan_, rank_, w);
    place_owned(wave, w);
    wave.send_in = stage(wave, in.sends);
    wave.receive_in = stage(wave, in.receives);
    wave.send_out = stage(wave, out.sends);
    wave.receive_out = stage(wave, out.receives);

    compile_in(wave, in);
    compile_out(wave, out);
  }

  bool averages(const plan::Segment& segment) const {
    return segment.matrix >= 0 ? catalog_.class_at(segment.matrix).all_replicas : catalog_.problem().grad_sync;
  }

  void compile_in(WaveProgram& wave, const plan::Exchange& in) {
    std::vector<std::pair<int32_t, SumStep>> sums;  // by the rank they come from
    for (const plan::Segment& segment : in.local) {
      if (averages(segment)) {
        place_sum(wave, segment);
        for (const Block& block : sum_blocks(segment)) sums.push_back({rank_, {segment.parameter, block, -1}});
      } else if (segment.matrix >= 0) {
        pack(wave, segment, matrix_blocks(segment));
      }
    }
    for (size_t i = 0; i < in.sends.size(); ++i) {
      const int64_t message = wave.send_in[i].span.offset;
      for (const plan::Segment& segment : in.sends[i].segments) {
        if (averages(segment)) {
          int64_t staged = message + segment.offset;
          for (const Block& block : blocks_of(segment)) {
            wave.gradients.push_back({segment.parameter, block, staged});
            staged += block.elements() * grad_bytes(segment);
          }
        } else if (assembled_.contains(segment.matrix)) {
          // A piece that this rank assembles too was packed there.
          copy(wave.gather, matrix_blocks(segment), staged_blocks(segment, message));
        } else {
          pack(wave, segment, staged_blocks(segment, message));
        }
      }
    }
    for (size_t i = 0; i < in.receives.size(); ++i) {
      const int64_t message = wave.receive_in[i].span.offset;
      for (const plan::Segment& segment : in.receives[i].segments) {
        if (!averages(segment)) {
          copy(wave.assemble, staged_blocks(segment, message), matrix_blocks(segment));
          continue;
        }
        int64_t staged = message + segment.offset;
        place_sum(wave, segment);
        for (const Block& block : sum_blocks(segment)) {
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
      } else {
        apply(returns_weights(segment) ? wave.apply_first : wave.apply, segment, matrix_blocks(segment));
      }
    }
    for (size_t i = 0; i < out.sends.size(); ++i) {
      const int64_t message = wave.send_out[i].span.offset;
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
      const int64_t message = wave.receive_out[i].span.offset;
      for (const plan::Segment& segment : out.receives[i].segments) {
        if (returns_weights(segment)) {
          add_weights(wave.weights_in, segment, message);
        } else {
          apply(wave.apply, segment, staged_blocks(segment, message));
        }
      }
    }
  }

  bool returns_weights(const plan::Segment& segment) const {
    return segment.matrix < 0 || catalog_.class_at(segment.matrix).weights_back;
  }

  int64_t grad_bytes(const plan::Segment& segment) const {
    return byte_size(catalog_.problem().parameters[segment.parameter].grad_dtype);
  }

  // Where the averaged gradients of a matrix or a range come together, once.
  void place_sum(WaveProgram& wave, const plan::Segment& segment) {
    const bool matrix = segment.matrix >= 0;
    const std::pair<int32_t, int64_t> key{segment.parameter, matrix ? -1 - segment.matrix : segment.piece.first_offset};
    if (sums_.contains(key)) return;
    const int64_t count = matrix ? catalog_.class_at(segment.matrix).matrix.elements() : segment.elements();
    const Span span{take(wave, count * kF32Bytes), count * kF32Bytes};
    const int64_t sum = span.offset / kF32Bytes;
    sums_[key] = sum;
    wave.sums.push_back(span);
    const int32_t replicas = catalog_.partition(segment.parameter).replicas();
    wave.average.push_back({sum, count, replicas});
    if (!matrix) return;
    wave.owner_momentum.push_back(
        {segment.parameter, count, sum, program_.momentum_elements, assembled_.at(segment.matrix) / wire_});
    program_.momentum_elements += count;
  }

  // Matrices that this rank assembles: those it owns, and where holders gather, those it holds.
  void place_owned(WaveProgram& wave, int32_t w) {
    assembled_.clear();
    sums_.clear();
    const Transport transport = plan_.waves[w].transport;
    const bool gathers = transport == Transport::kGather || transport == Transport::kGatherReduce;
    std::map<std::tuple<int64_t, int64_t, bool, NormAxis>, OwnedBatch> batches;
    auto orthogonalize = [&](int32_t j, int64_t at) {
      const plan::Matrix& m = catalog_.class_at(j).matrix;
      OwnedBatch& batch = batches[{m.rows, m.columns, m.normuon, m.norm_axis}];
      batch = {m.rows, m.columns, m.normuon, m.norm_axis, std::move(batch.matrices)};
      OwnedMatrix& mine = batch.matrices.emplace_back();
      mine.parameter = catalog_.parameter_of(j);
      mine.assembled = at / wire_;
      if (m.normuon) {
        mine.variance = program_.variance_elements;
        program_.variance_elements += m.norm_axis == NormAxis::kRows ? m.rows : m.columns;
      }
    };
    for (int32_t j = 0; j < catalog_.matrix_count(); ++j) {
      const bool owns = plan_.owner[j] == rank_;
      if (gathers && catalog_.class_at(j).all_replicas) throw Internal("a gather cannot average replicas");
      const bool holds = gathers && catalog_.holders_of(j).find(rank_) != nullptr;
      if (plan_.wave[j] != w || !(owns || holds)) continue;
      assembled_[j] = take(wave, catalog_.class_at(j).matrix.elements() * wire_);
      if (owns || transport == Transport::kGather) orthogonalize(j, assembled_[j]);
    }
    for (const ZeroMatrix& zero : plan_.waves[w].zeros) {
      if (zero.owner != rank_) continue;
      const int64_t bytes = catalog_.class_at(zero.like).matrix.elements() * wire_;
      wave.zero.push_back({take(wave, bytes), bytes});
      orthogonalize(zero.like, wave.zero.back().offset);
    }
    for (auto& [key, batch] : batches) wave.owned.push_back(std::move(batch));
  }

  std::vector<Block> blocks_of(const plan::Segment& segment) const {
    if (segment.matrix >= 0) return blocks(segment.piece, shape(segment.parameter));
    // A range of the shard: one row, wherever its elements are in the tensor.
    const int64_t first = segment.piece.first_offset;
    return {{1, segment.elements(), first, segment.elements(), first, segment.elements(), 0, 0}};
  }
  std::vector<Block> sum_blocks(const plan::Segment& segment) const {
    std::vector<Block> out = blocks_of(segment);
    const bool matrix = segment.matrix >= 0;
    const int64_t sum = sums_.at({segment.parameter, matrix ? -1 - segment.matrix : segment.piece.first_offset});
    for (Block& block : out) block.second = matrix ? block.second + sum : sum;
    return out;
  }

  // A segment's blocks with `second` in the assembled matrix, or densely in the message that starts at a byte.
  std::vector<Block> matrix_blocks(const plan::Segment& segment) const {
    std::vector<Block> out = blocks(segment.piece, shape(segment.parameter));
    for (Block& block : out) block.second += assembled_.at(segment.matrix) / wire_;
    return out;
  }
  std::vector<Block> staged_blocks(const plan::Segment& segment, int64_t message) const {
    std::vector<Block> out = blocks(segment.piece, shape(segment.parameter));
    int64_t at = (message + segment.offset) / wire_;
    for (Block& block : out) {
      block.second = at;
      block.second_stride = block.columns;
      at += block.elements();
    }
    return out;
  }

  void pack(WaveProgram& wave, const plan::Segment& segment, const std::vector<Block>& to) {
    for (const Block& block : to) {
      wave.pack.push_back({segment.parameter, block, program_.momentum_elements});
      program_.momentum_elements += block.elements();
    }
  }

  static void copy(std::vector<CopyStep>& steps, const std::vector<Block>& from, const std::vector<Block>& to) {
    for (size_t i = 0; i < from.size(); ++i) {
      steps.push_back(
          {from[i].rows, from[i].columns, from[i].second, from[i].second_stride, to[i].second, to[i].second_stride});
    }
  }

  static void apply(std::vector<ApplyStep>& steps, const plan::Segment& segment, const std::vector<Block>& from) {
    for (const Block& block : from) steps.push_back({segment.parameter, segment.matrix, block});
  }

  void add_weights(std::vector<WeightStep>& steps, const plan::Segment& segment, int64_t message) const {
    int64_t staged = message + segment.offset;
    for (const Block& block : blocks_of(segment)) {
      steps.push_back({segment.parameter, block, staged});
      staged += block.elements() * byte_size(catalog_.problem().parameters[segment.parameter].dtype);
    }
  }

  // Elements first to first + count of the local shard, in pieces whose numbers in the tensor are neighbours.
  void add_ranges(WaveProgram& wave, int32_t parameter, int64_t first, int64_t count) {
    const layout::Partition& partition = catalog_.partition(parameter);
    const auto sum = sums_.find({parameter, first});
    for (const layout::Run& run : partition.shard(partition.position_of(rank_))) {
      const layout::Overlap all{run.box, run.offset, run.offset, run.stride, run.stride};
      for (const Block& block : blocks(all, shape(parameter))) {
        for (int64_t i = 0; i < block.rows; ++i) {
          const int64_t row = block.first + i * block.first_stride;
          const int64_t begin = std::max(row, first);
          const int64_t end = std::min(row + block.columns, first + count);
          if (begin >= end) continue;
          const int64_t index = block.index + i * block.index_stride + begin - row;
          wave.ranges.push_back({parameter, begin, end - begin, index, program_.moment_elements,
                                 sum == sums_.end() ? -1 : sum->second + begin - first});
          program_.moment_elements += end - begin;
        }
      }
    }
  }

  // Elementwise parameters that are held once: spread over the waves, to hide the exchanges.
  void hold_ranges() {
    const Problem& problem = catalog_.problem();
    std::vector<std::pair<int32_t, int64_t>> held;
    int64_t total = 0;
    for (int32_t p = 0; p < static_cast<int32_t>(problem.parameters.size()); ++p) {
      const layout::Partition& partition = catalog_.partition(p);
      if (is_matrix_algorithm(problem.parameters[p].algorithm) || partition.replicas() > 1) continue;
      const int32_t position = partition.position_of(rank_);
      if (position < 0) continue;
      held.push_back({p, partition.local_elements(position)});
      total += held.back().second;
    }
    const auto waves = static_cast<int64_t>(program_.waves.size());
    int64_t before = 0;
    for (const auto& [p, elements] : held) {
      if (elements == 0) continue;
      const int64_t wave = std::min(waves - 1, before / (total / waves + 1));
      add_ranges(program_.waves[wave], p, 0, elements);
      before += elements;
    }
  }

  void lay_out_arena() {
    std::vector<int64_t> slot(kInFlight);
    for (size_t w = 0; w < program_.waves.size(); ++w) {
      slot[w % kInFlight] = std::max(slot[w % kInFlight], program_.waves[w].bytes);
    }
    std::vector<int64_t> start(kInFlight);
    for (size_t s = 0; s < kInFlight; ++s) {
      start[s] = program_.arena_bytes;
      program_.arena_bytes += slot[s];
    }
    for (size_t w = 0; w < program_.waves.size(); ++w) program_.wave_offsets.push_back(start[w % kInFlight]);
  }

  const plan::Catalog& catalog_;
  const Plan& plan_;
  const int32_t rank_;
  const int64_t wire_;
  Program program_;
  // Of the wave at hand: byte of each matrix, and element of f32 of each sum, by parameter and -1 - matrix or offset.
  std::map<int32_t, int64_t> assembled_;
  std::map<std::pair<int32_t, int64_t>, int64_t> sums_;
};

}  // namespace

Program compile(const plan::Catalog& catalog, const Plan& plan, int32_t rank) {
  return Compiler(catalog, plan, rank).run();
}

}  // namespace muster::engine
