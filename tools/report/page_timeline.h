// Timelines as a page carries them: few bytes a span.
#pragma once

#include <span>

#include <nlohmann/json.hpp>

#include "report/trace.h"

namespace muster::report {

// Spans that all timelines of a page keep, at most: about 15 bytes each.
inline constexpr int64_t kSpansMax = 250'000;

// One object a step name:
//   name, length_ns
//   labels       [text, is an exchange, wave or -1, bytes], one each for all that are alike
//   ranks        [rank, end_ns, tracks]; a track is 0 (computes) or 1 (exchanges) and its spans
//   together_ns  neighbours shorter than this are one span, so that there are at most `spans_max`; 0: none are
// Spans are triples of label, nanoseconds since the last one of the track ended, and duration.
nlohmann::ordered_json timelines_json(std::span<const TracedStep> steps, int64_t spans_max = kSpansMax);

}  // namespace muster::report
