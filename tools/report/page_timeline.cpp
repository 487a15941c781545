#include "report/page_timeline.h"

#include <algorithm>
#include <array>
#include <map>
#include <tuple>

#include <fmt/format.h>

#include "plan_text/text.h"
#include "report/lanes.h"

namespace muster::report {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kFinest = 1 << 16;  // of a step, where spans are put together first

struct Span {
  std::string name;
  int32_t wave = -1;
  int64_t bytes = 0;
  int64_t begin_ns = 0;  // since the step began
  int64_t end_ns = 0;
  int64_t merged = 1;
};

struct Track {
  bool exchange = false;
  std::vector<Span> spans;  // one behind the other
};

struct RankTracks {
  int32_t rank = 0;
  int64_t end_ns = 0;
  std::vector<Track> tracks;
};

struct Step {
  std::string name;
  int64_t length_ns = 0;
  int64_t together_ns = 0;
  std::vector<RankTracks> ranks;
};

RankTracks tracks_of(const TracedStep& step) {
  RankTracks out{step.rank, step.end_ns - step.begin_ns, {}};
  for (const bool exchange : {false, true}) {
    Lanes lanes;
    const size_t first = out.tracks.size();
    for (const TraceEvent* event : in_order(step.events)) {
      if (event->exchange != exchange) continue;
      const int64_t begin = event->begin_ns - step.begin_ns;
      const int64_t end = std::max(begin, event->end_ns - step.begin_ns);
      const size_t at = first + lanes.place(begin, end);
      if (at == out.tracks.size()) out.tracks.push_back({exchange, {}});
      out.tracks[at].spans.push_back({event->name, event->wave, event->bytes, begin, end, 1});
    }
  }
  return out;
}

std::vector<Step> by_name(std::span<const TracedStep> steps) {
  std::vector<Step> out;
  for (const TracedStep& step : steps) {
    auto found = std::find_if(out.begin(), out.end(), [&](const Step& s) { return s.name == step.name; });
    if (found == out.end()) found = out.insert(out.end(), {step.name, 0, 0, {}});
    RankTracks rank = tracks_of(step);
    found->length_ns = std::max(found->length_ns, rank.end_ns);
    for (const Track& track : rank.tracks) {
      if (!track.spans.empty()) found->length_ns = std::max(found->length_ns, track.spans.back().end_ns);
    }
    found->ranks.push_back(std::move(rank));
  }
  return out;
}

// Puts neighbours together that are shorter than this and no further apart.
void merge_short(std::vector<Span>& spans, int64_t together_ns) {
  std::vector<Span> out;
  for (Span& span : spans) {
    const bool joins = !out.empty() && span.end_ns - span.begin_ns < together_ns &&
                       out.back().end_ns - out.back().begin_ns < together_ns &&
                       span.begin_ns - out.back().end_ns < together_ns;
    if (!joins) {
      out.push_back(std::move(span));
      continue;
    }
    Span& last = out.back();
    last.end_ns = span.end_ns;
    last.bytes += span.bytes;
    last.merged += span.merged;
    if (last.wave != span.wave) last.wave = -1;
    if (last.name != span.name) last.name = "several";
  }
  spans = std::move(out);
}

int64_t span_count(const std::vector<Step>& steps) {
  int64_t count = 0;
  for (const Step& step : steps) {
    for (const RankTracks& rank : step.ranks) {
      for (const Track& track : rank.tracks) count += std::ssize(track.spans);
    }
  }
  return count;
}

void limit(std::vector<Step>& steps, int64_t spans_max) {
  for (int64_t finest = kFinest; finest > 0 && span_count(steps) > spans_max; finest /= 2) {
    for (Step& step : steps) {
      step.together_ns = std::max<int64_t>(1, step.length_ns / finest);
      for (RankTracks& rank : step.ranks) {
        for (Track& track : rank.tracks) merge_short(track.spans, step.together_ns);
      }
    }
  }
}

class Labels {
 public:
  size_t index(const Span& span, bool exchange) {
    const std::string text =
        span.merged == 1 ? span.name : fmt::format("{} × {}", plan_text::grouped_text(span.merged), span.name);
    const auto [found, added] = index_.try_emplace({text, exchange, span.wave, span.bytes}, index_.size());
    if (added) list_.push_back({text, exchange ? 1 : 0, span.wave, span.bytes});
    return found->second;
  }
  Json take() { return std::move(list_); }

 private:
  std::map<std::tuple<std::string, bool, int32_t, int64_t>, size_t> index_;
  Json list_ = Json::array();
};

Json to_json(const Step& step) {
  Labels labels;
  Json ranks = Json::array();
  for (const RankTracks& rank : step.ranks) {
    Json tracks = Json::array();
    for (const Track& track : rank.tracks) {
      Json spans = Json::array();
      int64_t last_ns = 0;
      for (const Span& span : track.spans) {
        spans.push_back(labels.index(span, track.exchange));
        spans.push_back(span.begin_ns - last_ns);
        spans.push_back(span.end_ns - span.begin_ns);
        last_ns = span.end_ns;
      }
      tracks.push_back({track.exchange ? 1 : 0, std::move(spans)});
    }
    ranks.push_back({rank.rank, rank.end_ns, std::move(tracks)});
  }
  return {{"name", step.name},
          {"length_ns", step.length_ns},
          {"together_ns", step.together_ns},
          {"labels", labels.take()},
          {"ranks", std::move(ranks)}};
}

}  // namespace

nlohmann::ordered_json timelines_json(std::span<const TracedStep> traced, int64_t spans_max) {
  std::vector<Step> steps = by_name(traced);
  limit(steps, spans_max);
  Json list = Json::array();
  for (const Step& step : steps) list.push_back(to_json(step));
  return list;
}

}  // namespace muster::report
