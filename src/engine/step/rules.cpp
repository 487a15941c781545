#include "engine/step/rules.h"

#include <algorithm>
#include <cctype>
#include <new>
#include <set>
#include <tuple>
#include <vector>

#include <fmt/format.h>

#include "base/hash.h"
#include "engine/state/rule_state.h"
#include "muster/error.h"
#include "plan/matrices.h"

namespace muster::engine {

namespace {

Rule* rule_of_group(const OptimizerOptions& options, int32_t group) {
  const auto index = static_cast<size_t>(group);
  return index < options.rules.size() ? options.rules[index].get() : nullptr;
}

void check_entries(const Rule& rule) {
  std::set<std::string> seen;
  for (const RuleState& entry : rule.state()) {
    const bool plain =
        std::ranges::all_of(entry.name, [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; });
    if (entry.name.empty() || !plain) {
      throw InvalidArgument(
          fmt::format("rule '{}': state \"{}\": expected letters, digits and underscores", rule.name(), entry.name));
    }
    if (!seen.insert(entry.name).second) {
      throw InvalidArgument(fmt::format("rule '{}': state \"{}\" is declared twice", rule.name(), entry.name));
    }
  }
}

// The same for every matrix of a shape, and neither zero nor symmetric.
std::vector<float> made_up_updates(int64_t elements) {
  std::vector<float> out(static_cast<size_t>(elements));
  for (size_t i = 0; i < out.size(); ++i) out[i] = (static_cast<float>(i * 37 % 101) - 50) / 64;
  return out;
}

void try_rule(Rule& rule, const Group& group, int32_t group_index, const plan::Matrix& m) {
  const std::vector<RuleState> entries = rule.state();
  const RuleStateLayout layout = rule_state_layout(entries, m.rows, m.columns);
  std::vector<float> updates = made_up_updates(m.elements());
  std::vector<float> memory(static_cast<size_t>(layout.elements));
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<Line> workspace(static_cast<size_t>(rule.workspace_bytes(m.rows, m.columns, 1) + 63) / sizeof(Line));
  std::vector<RuleBatch::State> state;
  for (const int64_t first : layout.first) state.push_back({memory.data() + first, layout.elements});
  rule.update({.count = 1,
               .rows = m.rows,
               .columns = m.columns,
               .updates = updates.data(),
               .state = state,
               .workspace = workspace.data(),
               .group = group,
               .group_index = group_index});
}

}  // namespace

void describe_rules(Problem& problem, const OptimizerOptions& options, std::span<const ParameterMemory> memory) {
  if (options.rules.size() > options.groups.size()) {
    throw InvalidArgument(
        fmt::format("{} rules: expected at most one per group, {}", options.rules.size(), options.groups.size()));
  }
  if (memory.size() != problem.parameters.size()) return;  // refused later
  for (size_t p = 0; p < memory.size(); ++p) {
    Parameter& parameter = problem.parameters[p];
    if (parameter.algorithm != Algorithm::kRule) continue;
    const Rule* const rule = rule_of_group(options, memory[p].group);
    if (rule == nullptr) {
      throw InvalidArgument(fmt::format("parameter '{}': group {} has no rule", parameter.name, memory[p].group));
    }
    if (options.device.kind != Device::Kind::kCpu) {
      throw InvalidArgument(
          fmt::format("parameter '{}': rules run on the CPU so far, its device is a GPU", parameter.name));
    }
    check_entries(*rule);
    parameter.rule = {.workspace_bytes = 0, .momentum = !rule->own_momentum()};
    const plan::MatrixGrid grid(parameter);
    for (int32_t i = 0; i < grid.count(); ++i) {
      const plan::Matrix m = grid.at(i);
      const int64_t bytes = rule->workspace_bytes(m.rows, m.columns, 1);
      if (bytes < 0) throw InvalidArgument(fmt::format("rule '{}': workspace of {} bytes", rule->name(), bytes));
      parameter.rule.workspace_bytes = std::max(parameter.rule.workspace_bytes, bytes);
    }
  }
}

uint64_t rules_fingerprint(const OptimizerOptions& options) {
  base::Hash hash;
  for (const std::shared_ptr<Rule>& rule : options.rules) {
    hash.add(static_cast<int64_t>(rule != nullptr));
    if (rule == nullptr) continue;
    hash.add(std::string_view(rule->name()));
    hash.add(static_cast<int64_t>(rule->own_momentum()));
    hash.add(static_cast<int64_t>(rule->batched()));
    for (const RuleState& entry : rule->state()) {
      hash.add(std::string_view(entry.name));
      hash.add(static_cast<int64_t>(entry.shape));
    }
  }
  return hash.value();
}

void try_rules(const plan::Catalog& catalog, const Plan& plan, int32_t rank, const OptimizerOptions& options,
               std::span<const ParameterMemory> memory) {
  std::set<std::tuple<int32_t, int64_t, int64_t>> tried;
  for (int32_t j = 0; j < catalog.matrix_count(); ++j) {
    const plan::Matrix& m = catalog.class_at(j).matrix;
    const int32_t group = memory[catalog.parameter_of(j)].group;
    if (!m.rule() || plan.owner[j] != rank || !tried.emplace(group, m.rows, m.columns).second) continue;
    Rule& rule = *rule_of_group(options, group);
    const auto refuse = [&](std::string_view why) {
      throw InvalidArgument(fmt::format("rule '{}', tried on {} x {} of '{}': {}", rule.name(), m.rows, m.columns,
                                        catalog.problem().parameters[catalog.parameter_of(j)].name, why));
    };
    try {
      try_rule(rule, options.groups[static_cast<size_t>(group)], group, m);
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::exception& error) {
      refuse(error.what());
    } catch (...) {
      refuse("an exception that is no std::exception");
    }
  }
}

}  // namespace muster::engine
