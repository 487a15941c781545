// What every rank sends and receives in one direction of one wave.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/cost_model/cost_model.h"
#include "plan/cost_model/node_sums.h"
#include "plan/messages.h"

namespace muster::plan {

// One rank's part of an exchange. Near is within a node.
struct Traffic {
  int64_t sent_near = 0;  // bytes
  int64_t sent_far = 0;
  int64_t received_near = 0;
  int64_t received_far = 0;
  int64_t sent_ns = 0;  // on the links of the cost table
  int64_t received_ns = 0;
  int64_t messages = 0;  // sent
  int64_t messages_received = 0;

  int64_t sent() const { return sent_near + sent_far; }
  int64_t received() const { return received_near + received_far; }
};

class WaveTraffic {
 public:
  // The cost model is kept by reference.
  WaveTraffic(const CostModel& cost, int32_t ranks) : pairs(ranks), cost_(cost), ranks_(ranks) {}

  void send(int32_t rank, NearFar bytes) {
    Traffic& traffic = ranks_[rank];
    traffic.sent_near += bytes.near;
    traffic.sent_far += bytes.far;
    traffic.sent_ns += ns(bytes);
  }
  void receive(int32_t rank, NearFar bytes) {
    Traffic& traffic = ranks_[rank];
    traffic.received_near += bytes.near;
    traffic.received_far += bytes.far;
    traffic.received_ns += ns(bytes);
  }
  void clear();
  void count_messages();

  const Traffic& at(int32_t rank) const { return ranks_[rank]; }
  int64_t bytes() const;  // sent by all ranks together

  MessageCounter pairs;
  int64_t padding = 0;  // bytes

 private:
  // Most calls have bytes on one kind of link only; divisions for the other would show in planning time.
  int64_t ns(NearFar bytes) const {
    return (bytes.near == 0 ? 0 : cost_.link_ns(bytes.near, true)) +
           (bytes.far == 0 ? 0 : cost_.link_ns(bytes.far, false));
  }

  const CostModel& cost_;
  std::vector<Traffic> ranks_;
};

}  // namespace muster::plan
