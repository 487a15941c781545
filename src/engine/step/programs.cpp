#include "engine/step/programs.h"

#include <algorithm>
#include <iterator>

namespace muster::engine {

Programs::Programs(const plan::Catalog& catalog, const Plan& plan, int32_t rank,
                   std::span<const ParameterMemory> memory, State& state)
    : catalog_(catalog), plan_(plan), rank_(rank), state_(state) {
  for (const ParameterMemory& m : memory) group_of_.push_back(m.group);
  programs_.emplace(std::vector<bool>{}, compile({}));
}

Program Programs::compile(const std::vector<bool>& active) {
  return engine::compile({.catalog = catalog_, .plan = plan_, .rank = rank_, .group_of = group_of_, .active = active},
                         state_);
}

const Program& Programs::of(const std::vector<bool>& active) {
  const bool all = std::find(active.begin(), active.end(), false) == active.end();
  const std::vector<bool> key = all ? std::vector<bool>{} : active;
  const auto found = programs_.find(key);
  if (found != programs_.end()) return found->second;
  if (programs_.size() >= kMostPrograms) programs_.erase(std::prev(programs_.end()));  // the first is the one of all
  Program& made = programs_.emplace(key, compile(key)).first->second;
  made.number = ++compiled_;
  return made;
}

}  // namespace muster::engine
