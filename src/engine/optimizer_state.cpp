// What an optimizer carries from step to step: in and out of it, and to another communicator.
#include <map>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/checkpoint_tensors.h"
#include "engine/optimizer_impl.h"
#include "engine/state/export_import.h"
#include "engine/step/agreement.h"
#include "engine/step/fail_together.h"
#include "muster/error.h"

namespace muster {

void Optimizer::Impl::reconnect(Communicator& communicator) {
  engine::fail_together(communicator, "reconnect", [&] {
    if (communicator.rank() == rank_ && communicator.size() == ranks_) return;
    throw InvalidArgument(fmt::format("reconnect: rank {} of {}, expected rank {} of {}", communicator.rank(),
                                      communicator.size(), rank_, ranks_));
  });
  if (!status_.broken()) {
    try {
      path_->settle();        // in bounded time; ends what waits for a peer that is gone
    } catch (const Error&) {  // the status says so
    }
  }
  status_.forget_refusals();
  if (path_->under_way() && !status_.broken()) {
    status_.break_off(fmt::format("step {} was dropped: load a state first", state_->steps + 1));
  }
  path_->drop();
  connect(communicator);
  engine::agree_on_plan(problem_, plan_, options_, memory_, communicator);
  // Where one rank broke off, another may have finished its step, or not have begun.
  int64_t most[] = {status_.broken() ? 1 : 0, state_->steps, -state_->steps};
  communicator.all_reduce(most, ReduceOp::kMax, "compare steps")->wait();
  const bool whole = most[0] == 0 && most[1] == -most[2];
  if (whole || status_.broken()) return;
  status_.break_off("reconnected to ranks of which some broke off: load a state first");
}

void Optimizer::Impl::move(int32_t parameter, void* weight, void* extra) {
  require_no_step();
  check_number(parameter);
  ParameterMemory moved = memory_[parameter];
  moved.weight = weight;
  moved.extra = extra;
  const auto groups = static_cast<int32_t>(options_.groups.size());
  engine::check_memory(problem_, *holdings_, static_cast<size_t>(parameter), moved, groups);
  memory_[parameter] = moved;  // in place: the parts of a step refer to it
}

void Optimizer::Impl::move_state(int32_t parameter, const StateMemory& state) {
  require_no_step();
  check_number(parameter);
  ParameterMemory& memory = memory_[parameter];
  const bool any = state.momentum != nullptr || state.second != nullptr || state.statistics != nullptr;
  if (any && !state_->holders_keep(parameter)) {
    throw InvalidArgument(fmt::format("parameter '{}': the engine keeps its state, not its holders",
                                      problem_.parameters[parameter].name));
  }
  if (state.momentum != nullptr) memory.momentum = state.momentum;
  if (state.second != nullptr) memory.second = state.second;
  if (state.statistics != nullptr) memory.statistics = state.statistics;
}

void Optimizer::Impl::restored() {
  require_no_step();
  path_->settle();
  status_.restore();
  status_.forget_refusals();
}

StateTensor Optimizer::Impl::export_state(const std::string& name) {
  status_.require_whole();
  require_no_step();
  path_->settle();
  status_.require_whole();
  const std::optional<engine::StateShard> shard = state_->find_shard(name);
  if (!shard) throw InvalidArgument(fmt::format("state \"{}\": there is none of that name", name));
  return path_->or_break("export of state", [&] { return engine::export_tensor(*shard, *link_.host); });
}

void Optimizer::Impl::import_state(std::span<const StateTensor> tensors) {
  require_no_step();
  path_->settle();
  std::vector<engine::StateShard> shards = state_->shards();
  std::map<std::string, engine::StateShard*> by_name;
  for (engine::StateShard& shard : shards) by_name[shard.info.name] = &shard;
  std::set<std::string_view> given;
  engine::fail_together(*link_.host, "check state", [&] {
    for (const StateTensor& tensor : tensors) {
      if (!given.insert(tensor.name).second) {
        throw InvalidArgument(fmt::format("state \"{}\": given twice", tensor.name));
      }
      const auto found = by_name.find(tensor.name);
      if (found == by_name.end()) {
        throw InvalidArgument(fmt::format("state \"{}\": there is none of that name", tensor.name));
      }
      engine::check_import(found->second->info, tensor);
    }
  });
  // Or some would go on while others are still broken.
  engine::check_same(*link_.host, "import state", fmt::format("{}", fmt::join(given, "\n")));
  for (const StateTensor& tensor : tensors) {
    engine::import_tensor(*by_name.at(tensor.name), tensor.data);
    by_name.erase(tensor.name);
  }
  if (by_name.empty()) status_.restore();
  status_.forget_refusals();
}

void Optimizer::Impl::save(const std::string& directory) {
  status_.require_whole();
  require_no_step();
  path_->settle();
  status_.require_whole();
  const std::vector<engine::StateShard> shards = state_->shards();
  path_->or_refuse(fmt::format("the checkpoint after step {}", state_->steps), [&] {
    engine::save_checkpoint(directory, {state_->steps, {}}, shards, *link_.host);
  });
}

void Optimizer::Impl::load(const std::string& directory) {
  require_no_step();
  path_->settle();
  const std::vector<engine::StateShard> shards = state_->shards();
  try {
    engine::load_checkpoint(directory, shards, *link_.host);
  } catch (const InvalidArgument&) {
    throw;  // nothing was changed
  } catch (const ResourceError&) {
    throw;  // nothing was changed: what fails later is a plain Error
  } catch (const Error& error) {
    path_->give_up(error.failure().within(fmt::format("loading \"{}\" broke off", directory)));
    throw;  // on every rank: they may try again
  } catch (...) {
    path_->break_off(fmt::format("loading \"{}\"", directory));
  }
  status_.restore();
  status_.forget_refusals();
}

}  // namespace muster
