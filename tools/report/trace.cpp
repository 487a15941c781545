#include "report/trace.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "report/lanes.h"

namespace muster::report {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kCompute = 1;
constexpr int kFirstExchange = 2;
constexpr int64_t kGapNs = 100'000;  // between steps, so that they are told apart

double microseconds(int64_t nanoseconds) { return static_cast<double>(nanoseconds) / 1e3; }

class Trace {
 public:
  std::string text(std::span<const TracedStep> steps) {
    place(steps);
    for (const TracedStep& step : steps) add(step);
    for (const auto& [rank, lanes] : lanes_) name_tracks(rank, lanes);
    std::string out = "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n";
    for (const Json& event : events_) {
      out += event.dump(-1, ' ', false, Json::error_handler_t::replace);
      out += &event == &events_.back() ? "\n" : ",\n";
    }
    return out + "]}\n";
  }

 private:
  // Where each named step begins.
  void place(std::span<const TracedStep> steps) {
    std::vector<std::string> order;
    std::map<std::string, int64_t> longest;
    for (const TracedStep& step : steps) {
      if (!longest.contains(step.name)) order.push_back(step.name);
      int64_t& length = longest[step.name];
      length = std::max(length, step.end_ns - step.begin_ns);
      for (const TraceEvent& event : step.events) length = std::max(length, event.end_ns - step.begin_ns);
    }
    int64_t at = 0;
    for (const std::string& name : order) {
      begin_[name] = at;
      at += longest[name] + kGapNs;
    }
  }

  struct Span {
    int rank = 0;
    int track = kCompute;
    int64_t begin_ns = 0;  // on the common axis
    int64_t end_ns = 0;
  };

  void add(const TracedStep& step) {
    const int64_t shift = begin_.at(step.name) - step.begin_ns;
    emit(step.name, "step", {step.rank, kCompute, step.begin_ns + shift, step.end_ns + shift}, nullptr);
    Lanes exchanges;
    for (const TraceEvent* event : in_order(step.events)) {
      Span span{step.rank, kCompute, event->begin_ns + shift, event->end_ns + shift};
      if (event->exchange) {
        // Slices of a track must nest: what overlaps goes to the next one.
        span.track = kFirstExchange + static_cast<int>(exchanges.place(span.begin_ns, span.end_ns));
      }
      emit(event->name, event->exchange ? "exchange" : "compute", span, event);
    }
    int& lanes = lanes_[step.rank];
    lanes = std::max({lanes, 1, static_cast<int>(exchanges.count())});
  }

  void emit(const std::string& name, const char* category, const Span& span, const TraceEvent* event) {
    Json json = {{"name", name},
                 {"cat", category},
                 {"ph", "X"},
                 {"pid", span.rank},
                 {"tid", span.track},
                 {"ts", microseconds(span.begin_ns)},
                 {"dur", microseconds(std::max<int64_t>(0, span.end_ns - span.begin_ns))}};
    if (event != nullptr) {
      Json details = Json::object();
      if (event->wave >= 0) details["wave"] = event->wave;
      if (event->bytes > 0) details["bytes"] = event->bytes;
      if (!details.empty()) json["args"] = std::move(details);
    }
    events_.push_back(std::move(json));
  }

  void name_tracks(int rank, int lanes) {
    metadata("process_name", rank, 0, {{"name", fmt::format("rank {}", rank)}});
    metadata("process_sort_index", rank, 0, {{"sort_index", rank}});
    metadata("thread_name", rank, kCompute, {{"name", "compute"}});
    for (int lane = 0; lane < lanes; ++lane) {
      metadata("thread_name", rank, kFirstExchange + lane,
               {{"name", lane == 0 ? std::string("exchange") : fmt::format("exchange ({})", lane + 1)}});
    }
  }

  void metadata(const char* what, int rank, int track, Json arguments) {
    events_.push_back({{"name", what}, {"ph", "M"}, {"pid", rank}, {"tid", track}, {"args", std::move(arguments)}});
  }

  std::map<std::string, int64_t> begin_;
  std::map<int, int> lanes_;  // exchange tracks of each rank
  std::vector<Json> events_;
};

}  // namespace

std::string trace_json(std::span<const TracedStep> steps) { return Trace().text(steps); }

}  // namespace muster::report
