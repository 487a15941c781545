// Which rows of which parameters a step multiplies by factors (RowScaling), where kernels read it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/state/device_buffer.h"
#include "kernels/kernels.h"
#include "muster/optimizer.h"
#include "plan/catalog.h"

namespace muster::engine {

class RowScalings {
 public:
  // Throws InvalidArgument that names what is wrong with the option row_scaling.
  RowScalings(const plan::Catalog& catalog, std::span<const RowScaling> scalings, kernels::Kernels& kernels);

  // How many factors a step needs at least.
  int64_t factors() const { return factors_; }
  bool scales(size_t parameter) const { return places_[parameter] >= 0; }
  kernels::RowFactors of(size_t parameter, const float* factors) const;

  // The parameters with such rows that are not in `active`.
  std::vector<bool> without(const std::vector<bool>& active) const;
  // True if an owner of some of these parameters returns new weights to replicas.
  bool any_returns_weights(const std::vector<bool>& parameters) const;

  // For a dry run and for steps that change nothing: memory with room for the factors, of which no value is used.
  std::span<const float> unread_factors() const { return {numbers_.as<const float>(), static_cast<size_t>(factors_)}; }

 private:
  std::vector<int64_t> places_;       // per parameter, its first row in numbers_; -1: no row is scaled
  std::vector<int64_t> row_lengths_;  // per parameter
  std::vector<bool> returns_;         // per parameter
  int64_t factors_ = 0;
  DeviceBuffer numbers_;  // RowScaling::factor_of_row of all parameters, one after the other; room for all factors
};

// Throws InvalidArgument if there are fewer factors than the scalings need, and more than none. On the host each of
// them must be finite and above 0.
void check_row_factors(const RowScalings& scalings, std::span<const float> factors, bool on_host);

}  // namespace muster::engine
