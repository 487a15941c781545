// The caller's rules, before the first step: what they declare, and a trial call of each.
#pragma once

#include <cstdint>
#include <span>

#include "muster/optimizer.h"
#include "plan/catalog.h"

namespace muster::engine {

// Fills in Parameter::rule from the rules. Throws InvalidArgument that names the parameter or the rule: a rule is
// missing, on a device, or declares wrong state. The problem is valid.
void describe_rules(Problem& problem, const OptimizerOptions& options, std::span<const ParameterMemory> memory);

// Equal on ranks whose rules declare the same.
uint64_t rules_fingerprint(const OptimizerOptions& options);

// Calls every rule once per shape of the matrices that `rank` owns, with made-up updates and state of zeros. Throws
// InvalidArgument that names the rule and the shape.
void try_rules(const plan::Catalog& catalog, const Plan& plan, int32_t rank, const OptimizerOptions& options,
               std::span<const ParameterMemory> memory);

}  // namespace muster::engine
