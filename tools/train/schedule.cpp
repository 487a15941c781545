#include "train/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace muster::train {
namespace {

// What is left of the first rate above the final one: 1 at first, 0 in the end.
double left(const Schedule& schedule, double progress) {
  if (schedule.form == Schedule::Form::kCosine) return (1 + std::cos(std::numbers::pi * progress)) / 2;
  const double falling = schedule.form == Schedule::Form::kLinear ? 1 : schedule.cooldown;
  return std::min(1.0, (1 - progress) / falling);
}

}  // namespace

double rate(const Schedule& schedule, int64_t done, int64_t scheduled) {
  if (done >= scheduled) return schedule.final_rate;
  const double share = left(schedule, static_cast<double>(done) / static_cast<double>(scheduled));
  return share + (1 - share) * schedule.final_rate;
}

}  // namespace muster::train
