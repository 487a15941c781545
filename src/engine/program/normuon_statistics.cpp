#include "engine/program/normuon_statistics.h"

#include <set>

#include "plan/normuon_statistics_routes.h"

namespace muster::engine {

void add_statistics_steps(const plan::Exchange& in, const plan::Exchange& out,
                          const std::map<int32_t, int64_t>& assembled_at, WaveProgram& wave) {
  const auto staged = [](const StagedMessage& message, const plan::LineSegment& lines) {
    return (message.range.offset + lines.offset) / plan::kLineBytes;
  };
  const auto assembled = [&](const plan::LineSegment& lines) {
    return assembled_at.at(lines.matrix) + lines.part.line;
  };
  const auto own = [](const plan::LineSegment& lines, int64_t at) {
    return LineStep{.parameter = lines.parameter, .held = lines.part.held, .staged = at, .count = lines.part.count};
  };
  const auto copied = [](const plan::LineSegment& lines, int64_t from, int64_t to) {
    const int64_t count = lines.part.count;
    return CopyStep{.rows = 1, .columns = count, .from = from, .from_stride = count, .to = to, .to_stride = count};
  };

  for (const plan::LineSegment& lines : in.local_lines) {
    if (assembled_at.contains(lines.matrix)) wave.lines_in.push_back(own(lines, assembled(lines)));
  }
  for (const plan::LineSegment& lines : out.local_lines) {
    if (assembled_at.contains(lines.matrix)) wave.lines_back.push_back(own(lines, assembled(lines)));
  }
  for (size_t i = 0; i < in.sends.size(); ++i) {
    for (const plan::LineSegment& lines : in.sends[i].lines) {
      wave.lines_in.push_back(own(lines, staged(wave.send_in[i], lines)));
    }
  }
  for (size_t i = 0; i < in.receives.size(); ++i) {
    for (const plan::LineSegment& lines : in.receives[i].lines) {
      wave.assemble_lines.push_back(copied(lines, staged(wave.receive_in[i], lines), assembled(lines)));
    }
  }
  std::set<int64_t> done;  // several ranks may receive one message
  for (size_t i = 0; i < out.sends.size(); ++i) {
    if (!done.insert(wave.send_out[i].range.offset).second) continue;
    for (const plan::LineSegment& lines : out.sends[i].lines) {
      const int64_t to = staged(wave.send_out[i], lines);
      if (assembled_at.contains(lines.matrix)) {
        wave.stage_lines.push_back(copied(lines, assembled(lines), to));
      } else {  // the counterpart in another replica keeps the same lines at the same place
        wave.lines_out.push_back(own(lines, to));
      }
    }
  }
  for (size_t i = 0; i < out.receives.size(); ++i) {
    for (const plan::LineSegment& lines : out.receives[i].lines) {
      wave.lines_back.push_back(own(lines, staged(wave.receive_out[i], lines)));
    }
  }
}

}  // namespace muster::engine
