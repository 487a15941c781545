#include "run/timeline.h"

#include <nlohmann/json.hpp>

namespace muster::run {
namespace {

using Json = nlohmann::json;

Json to_json(const Timeline& timeline) {
  Json events = Json::array();
  for (const TraceEvent& e : timeline.events) {
    events.push_back({e.name, e.exchange, e.wave, e.begin_ns, e.end_ns, e.bytes});
  }
  return {timeline.begin_ns, timeline.end_ns, std::move(events)};
}

Timeline from_json(const Json& json) {
  Timeline timeline{json[0], json[1], {}};
  for (const Json& e : json[2]) timeline.events.push_back({e[0], e[1], e[2], e[3], e[4], e[5]});
  return timeline;
}

}  // namespace

std::vector<Timeline> gather_timelines(Communicator& communicator, const Timeline& mine) {
  const std::vector<uint8_t> text = Json::to_cbor(to_json(mine));
  std::vector<int64_t> sizes(static_cast<size_t>(communicator.size()));
  const int64_t size = std::ssize(text);
  communicator.all_gather(&size, sizes.data(), sizeof(size), "timeline sizes")->wait();
  const std::vector<Send> sends{{0, text.data(), size}};
  std::vector<Receive> receives;
  std::vector<std::vector<uint8_t>> texts;
  if (communicator.rank() == 0) {
    for (const int64_t bytes : sizes) texts.emplace_back(static_cast<size_t>(bytes));
    for (int32_t r = 0; r < communicator.size(); ++r) receives.push_back({r, texts[r].data(), sizes[r]});
  }
  communicator.exchange(sends, receives, "timelines")->wait();
  std::vector<Timeline> timelines;
  for (const std::vector<uint8_t>& all : texts) timelines.push_back(from_json(Json::from_cbor(all)));
  return timelines;
}

}  // namespace muster::run
