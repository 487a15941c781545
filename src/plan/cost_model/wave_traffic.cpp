#include "plan/cost_model/wave_traffic.h"

#include <algorithm>

namespace muster::plan {

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
