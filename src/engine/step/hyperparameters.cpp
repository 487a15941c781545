#include "engine/step/hyperparameters.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "base/hash.h"
#include "muster/error.h"

namespace muster {

namespace {

void require(bool good, std::string_view field, double value, std::string_view expected) {
  if (!good) throw InvalidArgument(fmt::format("{} {}: expected {}", field, value, expected));
}

}  // namespace

void validate(const Group& group) {
  const auto at_least_0 = [](std::string_view field, double value) {
    require(std::isfinite(value) && value >= 0, field, value, "a finite number, at least 0");
  };
  const auto below_1 = [](std::string_view field, double value) {
    require(value >= 0 && value < 1, field, value, "0 to below 1");
  };
  at_least_0("lr", group.lr);
  at_least_0("weight_decay", group.weight_decay);
  at_least_0("eps", group.eps);
  below_1("momentum", group.momentum);
  below_1("beta1", group.beta1);
  below_1("beta2", group.beta2);
  if (group.every < 1) throw InvalidArgument(fmt::format("every {}: expected at least 1", group.every));
  validate(group.coefficients);
}

namespace engine {

bool all_valid(std::span<const Group> groups) {
  return std::ranges::all_of(groups, [](const Group& group) {
    try {
      validate(group);
    } catch (const InvalidArgument&) {
      return false;
    }
    return true;
  });
}

uint64_t fingerprint(const Group& group) {
  base::Hash print;
  print.add(fingerprint_but_rates(group));
  for (const double value : {group.lr, group.weight_decay, group.momentum}) print.add(value);
  return print.value();
}

uint64_t fingerprint_but_rates(const Group& group) {
  base::Hash print;
  for (const double value : {group.beta1, group.beta2, group.eps, group.coefficients.safety}) print.add(value);
  for (const int64_t value :
       {static_cast<int64_t>(group.decay), group.every, static_cast<int64_t>(group.momentum_form),
        static_cast<int64_t>(group.nesterov), static_cast<int64_t>(group.scale),
        static_cast<int64_t>(group.coefficients.rescale), static_cast<int64_t>(group.coefficients.sketch)}) {
    print.add(value);
  }
  for (const Coefficients::Step& step : group.coefficients.steps) {
    print.add(step.a);
    print.add(step.b);
    print.add(step.c);
  }
  return print.value();
}

bool takes_part(const Group& group, int64_t step) { return step % std::max<int64_t>(group.every, 1) == 0; }

std::vector<bool> parameters_due(std::span<const Group> groups, std::span<const ParameterMemory> memory, int64_t step) {
  std::vector<bool> due(memory.size());
  for (size_t p = 0; p < due.size(); ++p) due[p] = takes_part(groups[memory[p].group], step);
  return due;
}

}  // namespace engine

}  // namespace muster
