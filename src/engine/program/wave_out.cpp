// The steps of a wave from orthogonalized matrices to new weights, here and on other ranks.
#include <set>

#include "engine/program/elementwise.h"
#include "engine/program/wave_compiler.h"

namespace muster::engine {

void WaveCompiler::compile_out(const plan::Exchange& out) {
  for (const plan::Segment& segment : out.local) apply_local(segment);
  std::set<int64_t> staged;  // several ranks may receive one message
  for (size_t i = 0; i < out.sends.size(); ++i) {
    const int64_t message = program_.send_out[i].range.offset;
    if (!staged.insert(message).second) continue;
    for (const plan::Segment& segment : out.sends[i].segments) {
      if (returns_weights(segment)) {
        add_weights(program_.weights_out, segment, message);
      } else {
        copy(program_.stage_out, assembled_blocks({&segment, 1}), staged_blocks({&segment, 1}, message));
      }
    }
  }
  for (size_t i = 0; i < out.receives.size(); ++i) {
    const int64_t message = program_.receive_out[i].range.offset;
    for (const plan::Segment& segment : out.receives[i].segments) {
      if (returns_weights(segment)) {
        add_weights(program_.weights_in, segment, message);
      } else {
        apply(program_.apply, segment, staged_blocks({&segment, 1}, message));
      }
    }
  }
}

void WaveCompiler::apply_local(const plan::Segment& segment) {
  if (segment.matrix < 0) {
    const auto sum = sums_.find(sum_key(segment));
    add_range_steps({.parameter = segment.parameter, .first = segment.piece.first_offset, .count = segment.elements()},
                    sum == sums_.end() ? -1 : sum->second, state_, program_);
  } else if (HomeMatrix* const home = find_home(segment.matrix)) {
    apply(home->apply, segment, blocks_of(segment));
  } else {
    apply(returns_weights(segment) ? program_.apply_first : program_.apply, segment, assembled_blocks({&segment, 1}));
  }
}

void WaveCompiler::apply(std::vector<ApplyStep>& steps, const plan::Segment& segment, const Blocks& from) {
  const int32_t p = segment.parameter;
  state_.reserve_extra(p, from, returns_weights(segment) || state_.is_primary(p));
  for (const StridedBlock& block : from) {
    steps.push_back({.parameter = p, .matrix = segment.matrix, .block = block});
  }
}

// The owner and the receiving replica store what they share in the same way, so a segment's offsets fit both.
void WaveCompiler::add_weights(std::vector<WeightStep>& steps, const plan::Segment& segment, int64_t message) const {
  int64_t staged = message + segment.offset;
  for (const StridedBlock& block : blocks_of(segment)) {
    steps.push_back({.parameter = segment.parameter, .block = block, .staged = staged});
    staged += block.elements() * byte_size(input_.parameter(segment.parameter).dtype);
  }
}

}  // namespace muster::engine
