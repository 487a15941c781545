// Carries a plan out on explicit lists of elements and tells what is wrong with it.
#pragma once

#include <functional>
#include <string>

#include "muster/plan.h"
#include "plan/catalog.h"
#include "plan/exchange.h"

namespace muster::test {

// A planner as one rank sees it, so that tests can break it for one rank and see the breakage caught.
struct Planner {
  using Exchanger = std::function<plan::Exchange(const plan::Catalog&, const Plan&, int32_t rank, int32_t wave)>;
  std::function<Plan(const Problem&, const PlanOptions&, int32_t rank)> plan;
  Exchanger in;
  Exchanger out;
};
Planner real_planner();

// Empty if every rank derives the same plan, every element of every matrix reaches its owner exactly once and returns
// to every holder exactly once, no rank waits for what nobody sends, and bytes, messages, padding and scratch add up.
// Otherwise what is wrong, in one line.
std::string violation(const Problem& problem, const PlanOptions& options, const Planner& planner);

}  // namespace muster::test
