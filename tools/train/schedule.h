// How learning rates change over a training, as a share of the rate at its first step.
#pragma once

#include <cstdint>

namespace muster::train {

struct Schedule {
  enum class Form : uint8_t {
    kLinear,    // falls from the first scheduled step to the last
    kCooldown,  // stays, and falls in the last part
    kCosine,    // half a cosine
  };
  Form form = Form::kLinear;
  double cooldown = kDefaultCooldown;  // that last part, as a share of the scheduled steps
  double final_rate = 0;               // after the last scheduled step
  int64_t extension = 0;               // steps after the scheduled ones, at that rate: modded-nanogpt #132

  static constexpr double kDefaultCooldown = 0.5;
};

// Of step `done`, counted from 0, if `scheduled` steps are scheduled.
double rate(const Schedule& schedule, int64_t done, int64_t scheduled);

}  // namespace muster::train
