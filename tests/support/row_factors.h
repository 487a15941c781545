// Trainings whose steps multiply rows by factors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "support/device_copies.h"
#include "support/training.h"

namespace muster::test {

inline constexpr int32_t kFactors = 5;

// Factors of a step, the same on every rank; some are 1.
inline const std::vector<float>& factors_of(int step) {
  static const std::vector<std::vector<float>> all{
      {0.5F, 1, 0.3F, 0.9F, 1.25F}, {1, 0.7F, 0.999F, 1, 3}, {0.1F, 0.2F, 0.6F, 0.5F, 1}, {1, 1, 1, 1, 1}};
  return all[static_cast<size_t>(step) % all.size()];
}

inline int32_t number_of(size_t p, int64_t row) {
  return static_cast<int32_t>((row / 2 + static_cast<int64_t>(p)) % 6) - 1;
}

// Scales rows of all parameters but every fourth one.
inline Training with_factors(Training t) {
  for (size_t p = 0; p < t.problem.parameters.size(); ++p) {
    if (p % 4 == 3) continue;
    const Shape& shape = t.problem.parameters[p].shape;
    RowScaling scaling{.parameter = static_cast<int32_t>(p)};
    const int64_t rows = element_count(shape) / (shape.size() < 2 ? 1 : shape.back());
    for (int64_t row = 0; row < rows; ++row) scaling.factor_of_row.push_back(number_of(p, row));
    if (p == 0) scaling.factor_of_row[0] = kFactors - 1;
    t.options.row_scaling.push_back(scaling);
  }
  t.step_options = [before = t.step_options](int step) {
    StepOptions options = before ? before(step) : StepOptions{};
    options.row_factors = factors_of(step);
    return options;
  };
  return t;
}

// The factors of all steps where a device reads them.
class DeviceFactors {
 public:
  explicit DeviceFactors(const Device& device) : copies_(device) {
    for (int step = 0; step < 4; ++step) places_.push_back(upload(factors_of(step)));
  }
  std::span<const float> of(int step) const { return places_[static_cast<size_t>(step) % places_.size()]; }
  std::span<const float> upload(const std::vector<float>& factors) {
    const auto* const bytes = reinterpret_cast<const std::byte*>(factors.data());
    void* const place = copies_.keep({bytes, bytes + factors.size() * sizeof(float)});
    return {static_cast<const float*>(place), factors.size()};
  }
  // The same as with_factors(), from here. This object outlives the training.
  Training give(Training t) const {
    t = with_factors(std::move(t));
    t.step_options = [this, before = t.step_options](int step) {
      StepOptions options = before(step);
      options.row_factors = of(step);
      return options;
    };
    return t;
  }

 private:
  DeviceCopies copies_;
  std::vector<std::span<const float>> places_;
};

}  // namespace muster::test
