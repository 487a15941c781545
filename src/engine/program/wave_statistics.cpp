// How a wave moves NorMuon's statistics of matrices whose holders keep them.
#include <set>

#include "engine/program/wave_compiler.h"
#include "plan/normuon_statistics_routes.h"

namespace muster::engine {

// Statistics of matrices that are not assembled here are updated in the holder's memory.
void WaveCompiler::add_statistics(const plan::Exchange& in, const plan::Exchange& out) {
  const auto staged = [](const StagedMessage& message, const plan::LineSegment& lines) {
    return (message.range.offset + lines.offset) / plan::kLineBytes;
  };
  const auto assembled = [&](const plan::LineSegment& lines) {
    return assembled_statistics_.at(lines.matrix) + lines.part.line;
  };
  const auto own = [](const plan::LineSegment& lines, int64_t at) {
    return LineStep{.parameter = lines.parameter, .held = lines.part.held, .staged = at, .count = lines.part.count};
  };
  const auto copied = [](const plan::LineSegment& lines, int64_t from, int64_t to) {
    const int64_t count = lines.part.count;
    return CopyStep{.rows = 1, .columns = count, .from = from, .from_stride = count, .to = to, .to_stride = count};
  };

  for (const plan::LineSegment& lines : in.local_lines) {
    if (assembled_statistics_.contains(lines.matrix)) program_.lines_in.push_back(own(lines, assembled(lines)));
  }
  for (const plan::LineSegment& lines : out.local_lines) {
    if (assembled_statistics_.contains(lines.matrix)) program_.lines_back.push_back(own(lines, assembled(lines)));
  }
  for (size_t i = 0; i < in.sends.size(); ++i) {
    for (const plan::LineSegment& lines : in.sends[i].lines) {
      program_.lines_in.push_back(own(lines, staged(program_.send_in[i], lines)));
    }
  }
  for (size_t i = 0; i < in.receives.size(); ++i) {
    for (const plan::LineSegment& lines : in.receives[i].lines) {
      program_.assemble_lines.push_back(copied(lines, staged(program_.receive_in[i], lines), assembled(lines)));
    }
  }
  std::set<int64_t> done;  // several ranks may receive one message
  for (size_t i = 0; i < out.sends.size(); ++i) {
    if (!done.insert(program_.send_out[i].range.offset).second) continue;
    for (const plan::LineSegment& lines : out.sends[i].lines) {
      const int64_t to = staged(program_.send_out[i], lines);
      if (assembled_statistics_.contains(lines.matrix)) {
        program_.stage_lines.push_back(copied(lines, assembled(lines), to));
      } else {  // the counterpart in another replica keeps the same lines at the same place
        program_.lines_out.push_back(own(lines, to));
      }
    }
  }
  for (size_t i = 0; i < out.receives.size(); ++i) {
    for (const plan::LineSegment& lines : out.receives[i].lines) {
      program_.lines_back.push_back(own(lines, staged(program_.receive_out[i], lines)));
    }
  }
}

}  // namespace muster::engine
