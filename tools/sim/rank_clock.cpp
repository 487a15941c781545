#include "sim/rank_clock.h"

#include <algorithm>

namespace muster::sim {

void RankClock::compute(std::string_view label, int32_t wave, int64_t ns) {
  if (ns == 0) return;
  tasks_.push_back({.kind = Kind::kCompute, .label = label, .wave = wave, .left_ns = ns});
  busy_ns_ += ns;
}

void RankClock::settle() {
  for (; !tasks_.empty() && !computing(); tasks_.pop_front()) {
    const Task& task = tasks_.front();
    if (task.kind == Kind::kPost) {
      posted_.push_back(now_);
    } else if (task.exchange > ended_) {
      return;
    } else if (task.exchange == ended_) {  // what ended before that, the stream has passed
      now_ = std::max(now_, ended_at_);
    }
  }
}

void RankClock::work(int64_t done_ns, int64_t at) {
  Task& task = tasks_.front();
  if (task.begin_ns < 0) task.begin_ns = now_;
  task.left_ns -= done_ns;
  now_ = at;
  if (task.left_ns > 0) return;
  if (spans != nullptr) spans->push_back({task.label, Stream::kCompute, task.wave, task.begin_ns, now_, 0});
  tasks_.pop_front();
  settle();
}

int64_t RankClock::ready() {
  settle();
  while (posted_.empty()) work(tasks_.front().left_ns, now_ + tasks_.front().left_ns);
  return std::max(posted_.front(), ended_at_);
}

int64_t RankClock::carry_out(int64_t begin, int64_t ns) {
  posted_.pop_front();
  settle();
  while (computing() && now_ < begin) {
    const int64_t alone = std::min(tasks_.front().left_ns, begin - now_);
    work(alone, now_ + alone);
  }
  int64_t at = begin;
  while (computing() && ns > 0) {
    // Both are slowed so that together they take as long as the cost table says.
    const int64_t together = std::min(tasks_.front().left_ns, ns);
    at += (together * slowed_ + 99) / 100;
    ns -= together;
    work(together, at);
  }
  return at + ns;
}

void RankClock::end(int64_t exchange, int64_t at) {
  ended_ = exchange;
  ended_at_ = at;
}

int64_t RankClock::finish() {
  settle();
  while (computing()) work(tasks_.front().left_ns, now_ + tasks_.front().left_ns);
  return std::max(now_, ended_at_);
}

}  // namespace muster::sim
