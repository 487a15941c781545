#include "engine/step/row_scalings.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "muster/error.h"

namespace muster::engine {

namespace {

bool returns_weights(const plan::Catalog& catalog, int32_t parameter) {
  if (!is_matrix_algorithm(catalog.problem().parameters[parameter].algorithm)) {
    return !catalog.updated_in_place(parameter);
  }
  for (int32_t m = catalog.first_matrix(parameter); m < catalog.matrix_count() && catalog.parameter_of(m) == parameter;
       ++m) {
    if (catalog.class_at(m).weights_back) return true;
  }
  return false;
}

}  // namespace

RowScalings::RowScalings(const plan::Catalog& catalog, std::span<const RowScaling> scalings,
                         kernels::Kernels& kernels) {
  const std::vector<Parameter>& parameters = catalog.problem().parameters;
  places_.assign(parameters.size(), -1);
  row_lengths_.assign(parameters.size(), 1);
  returns_.assign(parameters.size(), false);
  std::vector<int32_t> numbers;
  for (const RowScaling& scaling : scalings) {
    const int32_t p = scaling.parameter;
    if (p < 0 || p >= std::ssize(parameters)) {
      throw InvalidArgument(fmt::format("row_scaling: parameter {}: expected 0 to {}", p, parameters.size() - 1));
    }
    const Parameter& parameter = parameters[p];
    if (places_[p] >= 0) throw InvalidArgument(fmt::format("row_scaling: parameter '{}': twice", parameter.name));
    const int64_t length = parameter.shape.size() < 2 ? 1 : parameter.shape.back();
    const int64_t rows = element_count(parameter.shape) / length;
    if (std::ssize(scaling.factor_of_row) != rows) {
      throw InvalidArgument(fmt::format("row_scaling: parameter '{}': {} rows, expected {}", parameter.name,
                                        scaling.factor_of_row.size(), rows));
    }
    places_[p] = std::ssize(numbers);
    row_lengths_[p] = length;
    returns_[p] = returns_weights(catalog, p);
    for (const int32_t number : scaling.factor_of_row) {
      if (number < -1) {
        throw InvalidArgument(
            fmt::format("row_scaling: parameter '{}': factor {}: expected at least -1", parameter.name, number));
      }
      factors_ = std::max(factors_, int64_t{number} + 1);
      numbers.push_back(number);
    }
  }
  const auto bytes = static_cast<int64_t>(numbers.size() * sizeof(int32_t));
  numbers_ = {kernels, std::max(bytes, factors_ * static_cast<int64_t>(sizeof(float)))};
  if (bytes > 0) kernels.write(numbers_.data(), numbers.data(), {1, bytes, 0, 0});
}

kernels::RowFactors RowScalings::of(size_t parameter, const float* factors) const {
  if (factors == nullptr || !scales(parameter)) return {};
  return {factors, numbers_.as<const int32_t>() + places_[parameter], row_lengths_[parameter]};
}

std::vector<bool> RowScalings::without(const std::vector<bool>& active) const {
  std::vector<bool> out(places_.size());
  for (size_t p = 0; p < out.size(); ++p) out[p] = scales(p) && !active[p];
  return out;
}

bool RowScalings::any_returns_weights(const std::vector<bool>& parameters) const {
  for (size_t p = 0; p < parameters.size(); ++p) {
    if (parameters[p] && returns_[p]) return true;
  }
  return false;
}

void check_row_factors(const RowScalings& scalings, std::span<const float> factors, bool on_host) {
  if (factors.empty()) return;
  if (std::ssize(factors) < scalings.factors()) {
    throw InvalidArgument(
        fmt::format("row_factors: {} factors, expected at least {}", factors.size(), scalings.factors()));
  }
  for (size_t i = 0; on_host && i < factors.size(); ++i) {
    if (std::isfinite(factors[i]) && factors[i] > 0) continue;
    throw InvalidArgument(fmt::format("row_factors[{}] {}: expected a finite number above 0", i, factors[i]));
  }
}

}  // namespace muster::engine
