#include "plan/cost_model/wave_traffic.h"

#include <algorithm>

namespace muster::plan {

void WaveTraffic::send(int32_t rank, NearFar bytes) {
  Traffic& traffic = ranks_[rank];
  traffic.sent_near += bytes.near;
  traffic.sent_far += bytes.far;
  traffic.sent_ns += cost_.link_ns(bytes.near, true) + cost_.link_ns(bytes.far, false);
}

void WaveTraffic::receive(int32_t rank, NearFar bytes) {
  Traffic& traffic = ranks_[rank];
  traffic.received_near += bytes.near;
  traffic.received_far += bytes.far;
  traffic.received_ns += cost_.link_ns(bytes.near, true) + cost_.link_ns(bytes.far, false);
}

void WaveTraffic::clear() {
  std::fill(ranks_.begin(), ranks_.end(), Traffic{});
  pairs.clear();
  padding = 0;
}

void WaveTraffic::count_messages() {
  std::vector<int64_t> sent(ranks_.size());
  std::vector<int64_t> received(ranks_.size());
  pairs.count(sent, received);
  for (size_t r = 0; r < ranks_.size(); ++r) {
    ranks_[r].messages = sent[r];
    ranks_[r].messages_received = received[r];
  }
}

int64_t WaveTraffic::bytes() const {
  int64_t bytes = 0;
  for (const Traffic& traffic : ranks_) bytes += traffic.sent();
  return bytes;
}

}  // namespace muster::plan
