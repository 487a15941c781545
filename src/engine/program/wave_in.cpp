// The steps of a wave up to the exchange in: momentum, packing, and what is assembled and summed from messages.
#include <algorithm>

#include "engine/program/peer_strategies.h"
#include "engine/program/wave_compiler.h"
#include "plan/replicas.h"

namespace muster::engine {

namespace {

// Calls visit(segments) for the consecutive segments of each matrix, and for each range alone.
template <typename Visit>
void for_each_matrix(const std::vector<plan::Segment>& segments, Visit visit) {
  for (size_t begin = 0; begin < segments.size();) {
    size_t end = begin + 1;
    const int32_t j = segments[begin].matrix;
    while (j >= 0 && end < segments.size() && segments[end].matrix == j) ++end;
    visit(std::span(segments).subspan(begin, end - begin));
    begin = end;
  }
}

}  // namespace

void WaveCompiler::compile_in(const plan::Exchange& in) {
  for_each_matrix(in.local, [&](Segments segments) { pack_local(segments); });
  for (size_t i = 0; i < in.sends.size(); ++i) pack_message(in.sends[i], program_.send_in[i].range.offset);
  for (size_t i = 0; i < in.receives.size(); ++i) unpack_message(in.receives[i], program_.receive_in[i].range.offset);
  // The order of the ranks, so that every layout sums alike.
  std::stable_sort(sum_steps_.begin(), sum_steps_.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& [rank, step] : sum_steps_) program_.sum.push_back(step);
}

void WaveCompiler::pack_local(Segments segments) {
  if (averages(segments[0])) {
    for (const plan::Segment& segment : segments) add_sums(rank_, segment, -1);
  } else if (HomeMatrix* const home = find_home(segments[0].matrix)) {
    pack(home->pack, segments, blocks_of(segments));
  } else if (segments[0].matrix >= 0) {
    pack(program_.pack, segments, assembled_blocks(segments));
  }
}

void WaveCompiler::pack_message(const plan::Message& message, int64_t begin) {
  for_each_matrix(message.segments, [&](Segments segments) {
    if (averages(segments[0])) {
      for (const plan::Segment& segment : segments) {
        const int64_t width = byte_size(input_.parameter(segment.parameter).grad_dtype);
        int64_t staged = begin + segment.offset;
        for (const StridedBlock& block : blocks_of(segment)) {
          program_.gradients.push_back({.parameter = segment.parameter, .block = block, .staged = staged});
          staged += block.elements() * width;
        }
      }
    } else if (assembled_.contains(segments[0].matrix)) {
      copy(program_.gather, assembled_blocks(segments), staged_blocks(segments, begin));
    } else {
      pack(program_.pack, segments, staged_blocks(segments, begin));
    }
  });
}

void WaveCompiler::unpack_message(const plan::Message& message, int64_t begin) {
  for (const plan::Segment& segment : message.segments) {
    if (averages(segment)) {
      add_sums(message.peer, segment, begin + segment.offset);
    } else {
      copy(program_.assemble, staged_blocks({&segment, 1}, begin), assembled_blocks({&segment, 1}));
    }
  }
}

void WaveCompiler::pack(std::vector<PackStep>& steps, Segments segments, const Blocks& to) {
  const int32_t p = segments[0].parameter;
  const bool reserves = state_.keeps_momentum(p) && !state_.holders_keep(p);
  int64_t momentum = reserves ? state_.reserve_momentum(segments[0].matrix, packed(to)) : 0;
  for (const StridedBlock& block : to) {
    steps.push_back({.parameter = p, .block = block, .momentum = momentum});
    momentum += block.elements();
  }
}

// `staged` is the byte of the dense gradients; -1: they are this rank's own.
void WaveCompiler::add_sums(int32_t from_rank, const plan::Segment& segment, int64_t staged) {
  const int64_t sum = sums_.at(sum_key(segment));
  const int64_t width = byte_size(input_.parameter(segment.parameter).grad_dtype);
  const Blocks blocks = segment.matrix >= 0 ? shifted(blocks_of(segment), sum) : packed(blocks_of(segment), sum);
  for (const StridedBlock& block : blocks) {
    sum_steps_.push_back({from_rank, {.parameter = segment.parameter, .block = block, .staged = staged}});
    if (staged >= 0) staged += block.elements() * width;
  }
}

// Where every replica keeps momentum, replicas that do not send the update still follow it.
void WaveCompiler::follow_other_replicas() {
  if (holders_gather(wave())) return;
  for (int32_t j = 0; j < catalog_.matrix_count(); ++j) {
    if (!input_.in_wave(j, number_) || !class_at(j).each_momentum) continue;
    const plan::HolderSet& holders = catalog_.holders_of(j);
    const plan::Holder* const mine = holders.find(rank_);
    if (mine == nullptr || plan::in_each_replica(input_.plan, j)) continue;
    if (mine->replica == holders.source_replica(input_.plan.owner[j])) continue;
    const int32_t p = catalog_.parameter_of(j);
    const std::vector<layout::Run> shard = catalog_.partition(p).shard(mine->position);
    const std::vector<layout::Run> matrix = catalog_.grid(p).runs(catalog_.index_in_parameter(j));
    for (const layout::Intersection& piece : layout::intersections(shard, matrix)) {
      for (StridedBlock block : strided_blocks(piece, shape(p))) {
        block.second = PackStep::kNowhere;
        program_.pack.push_back({.parameter = p, .block = block, .momentum = -1});
      }
    }
  }
}

}  // namespace muster::engine
