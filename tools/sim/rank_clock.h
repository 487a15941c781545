// One rank's two streams: calls on its compute stream in the executor's order, and exchanges beside them, one at a
// time.
#pragma once

#include <cstdint>
#include <deque>
#include <string_view>
#include <vector>

#include "sim/timeline.h"

namespace muster::sim {

class RankClock {
 public:
  // `overlap_percent` is that of a cost table: of a computation of time a beside an exchange of time b, that part of
  // the shorter one is hidden.
  explicit RankClock(int64_t overlap_percent) : slowed_(200 - overlap_percent) {}

  // The compute stream, in order. Exchanges are numbered in the order in which all ranks post them.
  void compute(std::string_view label, int32_t wave, int64_t ns);
  void post(int64_t exchange) { tasks_.push_back({.kind = Kind::kPost, .exchange = exchange}); }
  void wait(int64_t exchange) { tasks_.push_back({.kind = Kind::kWait, .exchange = exchange}); }

  // When the next exchange is posted and the one before it has ended.
  int64_t ready();
  // This rank's part in it takes `ns` from `begin` if nothing is computed beside it. Returns when it is through.
  int64_t carry_out(int64_t begin, int64_t ns);
  // All ranks that take part in it are through.
  void end(int64_t exchange, int64_t at);
  // Until nothing is left to compute; all exchanges have ended.
  int64_t finish();

  int64_t busy_ns() const { return busy_ns_; }  // of the compute stream, had it been alone

  std::vector<Span>* spans = nullptr;  // where to write down what was computed when; null: nowhere

 private:
  enum class Kind : uint8_t { kCompute, kPost, kWait };
  struct Task {
    Kind kind = Kind::kCompute;
    int64_t exchange = 0;
    std::string_view label{};
    int32_t wave = 0;
    int64_t left_ns = 0;
    int64_t begin_ns = -1;
  };

  bool computing() const { return !tasks_.empty() && tasks_.front().kind == Kind::kCompute; }
  // Passes posts, and waits for what has ended.
  void settle();
  // The first call, which computes, gets on by `done_ns`, until `at`.
  void work(int64_t done_ns, int64_t at);

  const int64_t slowed_;  // percent
  std::deque<Task> tasks_;
  std::deque<int64_t> posted_;  // when, of exchanges that have not been carried out
  int64_t ended_ = -1;          // the last exchange that has
  int64_t ended_at_ = 0;
  int64_t now_ = 0;  // of the compute stream
  int64_t busy_ns_ = 0;
};

}  // namespace muster::sim
