#include "muster/optimizer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <optional>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "engine/agreement.h"
#include "engine/checkpoint.h"
#include "engine/checkpoint_tensors.h"
#include "engine/executor.h"
#include "engine/program.h"
#include "engine/recorder.h"
#include "engine/state.h"
#include "engine/together.h"
#include "engine/transfer.h"
#include "kernels/kernels.h"
#include "muster/error.h"

namespace muster {

using kernels::SumOfSquares;

namespace {

constexpr double kClipEps = 1e-6;
constexpr size_t kMostPrograms = 16;
constexpr int kMostThreads = 4096;

}  // namespace

std::string_view name(Stage stage) {
  constexpr std::string_view kNames[kStages] = {"control",   "pack",        "wait in", "assemble", "orthogonalize",
                                                "normalize", "elementwise", "stage",   "wait out", "apply"};
  return kNames[static_cast<size_t>(stage)];
}

class Optimizer::Impl {
 public:
  Impl(Problem problem, OptimizerOptions options, Communicator& communicator, std::vector<ParameterMemory> memory)
      : problem_(std::move(problem)),
        options_(std::move(options)),
        communicator_(&communicator),
        rank_(communicator.rank()),
        ranks_(communicator.size()),
        memory_(std::move(memory)) {
    engine::together(*communicator_, "check arguments", [&] { build(); });
    engine::agree_on_plan(problem_, plan_, options_, memory_, *communicator_);
    engine::agree_on_replicas(problem_, *holdings_, memory_, *communicator_);
  }

  const StepStats& step(std::span<void* const> gradients, const StepOptions& options);
  double grad_norm(std::span<void* const> gradients, double grad_scale);
  void reconnect(Communicator& communicator);

  void require_whole() const {
    if (!broken_.empty()) throw CommError(broken_);
  }
  StateTensor export_state(const std::string& name);
  void import_state(std::span<const StateTensor> tensors);
  void save(const std::string& directory);
  void load(const std::string& directory);

  // In a catch block, after something that leaves weights or ranks in between: nobody waits for this rank, and it does
  // not go on.
  [[noreturn]] void break_off(std::string_view what) {
    try {
      throw;
    } catch (const CommError& error) {
      give_up(fmt::format("{} broke off: {}", what, error.what()));
      throw CommError(broken_);
    } catch (const std::exception& error) {
      const std::string why = fmt::format("{} broke off: {}", what, error.what());
      communicator_->abort(why);  // first: giving up waits for what is under way
      give_up(why);
      throw;
    }
  }
  template <typename Work>
  auto or_break(std::string_view what, Work work) {
    try {
      return work();
    } catch (...) {
      break_off(what);
    }
  }
  // Bad input is refused on every rank, before anything was changed; the optimizer then goes on.
  template <typename Work>
  auto or_refuse(std::string_view what, Work work) {
    try {
      return work();
    } catch (const InvalidArgument&) {
      throw;
    } catch (...) {
      break_off(what);
    }
  }

  Problem problem_;
  OptimizerOptions options_;
  Plan plan_;
  std::optional<engine::State> state_;
  std::optional<engine::Executor> executor_;
  engine::Recorder recorder_;

 private:
  void build();
  void give_up(std::string why) {
    broken_ = std::move(why);
    if (executor_) executor_->abandon();
  }

  // What all ranks agree upon before a step changes anything.
  struct Accord {
    std::vector<bool> active;  // parameters that take part
    bool skip = false;
    double clip = 1;
  };
  bool screen(std::span<void* const> gradients, const std::vector<bool>& active, NonFinite policy);
  Accord prepare(std::span<void* const> gradients, const StepOptions& options);
  void add_squares(std::span<void* const> gradients, const std::vector<bool>& active,
                   std::vector<SumOfSquares>& squares);
  void reduce(std::span<int64_t> words, std::string_view what) {
    communicator_->all_reduce(words, ReduceOp::kSum, fmt::format("step {} {}", state_->steps + 1, what))->wait();
  }
  std::vector<double> reduced(std::vector<SumOfSquares>& squares, std::string_view what);

  const engine::Program& program(const std::vector<bool>& active);
  bool holds(size_t p) const { return holdings_->any(p); }
  bool averaged(size_t p) const { return problem_.grad_sync && holdings_->replicas[p] > 1; }
  kernels::ValueBlock shard(size_t p, const void* data) const {
    return {1, holdings_->elements[p], data, holdings_->elements[p]};
  }
  engine::StateSlice find_state(const std::string& name);

  Communicator* communicator_;
  const int32_t rank_;
  const int32_t ranks_;
  std::vector<ParameterMemory> memory_;
  std::vector<int32_t> group_of_;
  std::optional<plan::Catalog> catalog_;
  std::optional<engine::Holdings> holdings_;
  std::unique_ptr<kernels::Kernels> kernels_;
  std::map<std::vector<bool>, engine::Program> programs_;  // by active parameters; empty: all
  std::string broken_;                                     // why no further step is possible
};

void Optimizer::Impl::build() {
  muster::validate(problem_);
  if (ranks_ != problem_.ranks) {
    throw InvalidArgument(fmt::format("a problem of {} ranks on a communicator of {}", problem_.ranks, ranks_));
  }
  if (options_.momentum == Dtype::kF16) throw InvalidArgument("momentum f16: expected f32 or bf16");
  if (problem_.wire == Dtype::kF16) throw InvalidArgument("wire f16: expected f32 or bf16");
  if (options_.threads < 1 || options_.threads > kMostThreads) {
    throw InvalidArgument(fmt::format("threads {}: expected 1 to {}", options_.threads, kMostThreads));
  }
  if (options_.groups.empty()) throw InvalidArgument("groups: none");
  for (const Group& group : options_.groups) muster::validate(group);
  catalog_.emplace(problem_);
  holdings_.emplace(*catalog_, rank_);
  engine::check_memory(problem_, *holdings_, memory_, static_cast<int32_t>(options_.groups.size()), rank_);
  for (const ParameterMemory& memory : memory_) group_of_.push_back(memory.group);
  plan_ = make_plan(problem_, options_.plan);
  state_.emplace(*catalog_, plan_, rank_, options_.momentum, memory_);
  const engine::Program& all =
      programs_.emplace(std::vector<bool>{}, engine::compile(*catalog_, plan_, rank_, group_of_, {}, *state_))
          .first->second;
  state_->allocate();
  state_->seed = static_cast<int64_t>(options_.seed);
  kernels_ = kernels::make_cpu_kernels({options_.threads});
  const int64_t cap = options_.plan.strategy == Strategy::kGlobal ? options_.plan.scratch_bytes : 0;
  executor_.emplace(*catalog_, memory_, options_.groups, group_of_, options_.momentum, cap, *kernels_, *state_,
                    recorder_, all);
  // The table says how wide the kernels compute, and with it what the plan counts on.
  if (cap > 0 && executor_->scratch_bytes() > cap) {
    throw InvalidArgument(fmt::format("scratch_bytes {}: rank {} needs {}; cost table '{}' is for another device", cap,
                                      rank_, executor_->scratch_bytes(), options_.plan.cost.device));
  }
}

const engine::Program& Optimizer::Impl::program(const std::vector<bool>& active) {
  const bool all = std::find(active.begin(), active.end(), false) == active.end();
  const std::vector<bool> key = all ? std::vector<bool>{} : active;
  const auto found = programs_.find(key);
  if (found != programs_.end()) return found->second;
  if (programs_.size() >= kMostPrograms) programs_.erase(std::prev(programs_.end()));  // the first one is everybody's
  return programs_.emplace(key, engine::compile(*catalog_, plan_, rank_, group_of_, key, *state_)).first->second;
}

// Of the gradients that this rank stands for; averages of replicas at their owners.
void Optimizer::Impl::add_squares(std::span<void* const> gradients, const std::vector<bool>& active,
                                  std::vector<SumOfSquares>& squares) {
  std::vector<bool> travels(active.size());
  {
    const auto timed = recorder_.span(Stage::kControl);
    for (size_t p = 0; p < active.size(); ++p) {
      travels[p] = active[p] && averaged(p);
      if (!active[p] || travels[p] || !holds(p) || gradients[p] == nullptr || holdings_->replica[p] != 0) continue;
      const kernels::ValueBlock block = shard(p, gradients[p]);
      kernels_->sum_squares(problem_.parameters[p].grad_dtype, {&block, 1}, squares[p]);
    }
  }
  if (std::find(travels.begin(), travels.end(), true) == travels.end()) return;
  executor_->average(program(travels), {gradients, 1, state_->steps + 1, nullptr}, *communicator_,
                     [&](int32_t p, const float* average, int64_t count) {
                       const auto timed = recorder_.span(Stage::kControl);
                       const kernels::ValueBlock block{1, count, average, count};
                       kernels_->sum_squares(Dtype::kF32, {&block, 1}, squares[p]);
                     });
}

std::vector<double> Optimizer::Impl::reduced(std::vector<SumOfSquares>& squares, std::string_view what) {
  const auto timed = recorder_.span(Stage::kControl);
  std::vector<int64_t> words;
  for (const SumOfSquares& sum : squares) words.insert(words.end(), sum.words().begin(), sum.words().end());
  reduce(words, what);
  std::vector<double> values;
  for (size_t i = 0; i < squares.size(); ++i) {
    std::copy_n(words.begin() + static_cast<int64_t>(i) * SumOfSquares::kWords, SumOfSquares::kWords,
                squares[i].words().begin());
    values.push_back(squares[i].value());
  }
  return values;
}

// Whether the policy is to skip the step.
bool Optimizer::Impl::screen(std::span<void* const> gradients, const std::vector<bool>& active, NonFinite policy) {
  const size_t parameters = problem_.parameters.size();
  const auto grad_dtype = [&](size_t p) { return problem_.parameters[p].grad_dtype; };
  std::vector<int64_t> bad(parameters);
  for (size_t p = 0; p < parameters; ++p) {
    if (!active[p] || !holds(p) || gradients[p] == nullptr) continue;
    const kernels::ValueBlock block = shard(p, gradients[p]);
    bad[p] = kernels_->all_finite(grad_dtype(p), {&block, 1}) ? 0 : 1;
  }
  const std::vector<int64_t> mine = bad;
  reduce(bad, "finiteness");
  const auto first = std::find_if(bad.begin(), bad.end(), [](int64_t n) { return n > 0; });
  if (first == bad.end()) return false;
  if (policy == NonFinite::kError) {
    throw InvalidArgument(fmt::format("step {}: parameter '{}': its gradient is not finite on {} of the ranks",
                                      state_->steps + 1, problem_.parameters[first - bad.begin()].name, *first));
  }
  if (policy == NonFinite::kSkipStep) return true;
  for (size_t p = 0; p < parameters; ++p) {
    if (mine[p] == 0) continue;
    const kernels::ValueBlock block = shard(p, gradients[p]);
    kernels_->zero_non_finite(grad_dtype(p), {&block, 1});
  }
  return false;
}

Optimizer::Impl::Accord Optimizer::Impl::prepare(std::span<void* const> gradients, const StepOptions& options) {
  Accord accord;
  {
    const auto timed = recorder_.span(Stage::kControl);
    accord.active = engine::agree_on_step(problem_, *holdings_, memory_, options_.groups, gradients, options,
                                          state_->steps + 1, *communicator_);
    if (options.non_finite != NonFinite::kIgnore) accord.skip = screen(gradients, accord.active, options.non_finite);
  }
  if (accord.skip) return accord;
  const size_t parameters = problem_.parameters.size();
  if (options.max_grad_norm == 0 && !options.grad_norm && !options.parameter_stats) return accord;
  std::vector<SumOfSquares> squares(parameters);
  add_squares(gradients, accord.active, squares);
  SumOfSquares total;
  if (options.parameter_stats) {
    const std::vector<double> sums = reduced(squares, "gradient norms");
    for (size_t p = 0; p < parameters; ++p) {
      recorder_.stats.parameters[p].grad_norm = std::sqrt(sums[p]) * std::abs(options.grad_scale);
    }
    for (const SumOfSquares& sum : squares) total.merge(sum);
  } else {
    std::vector<SumOfSquares> one(1);
    for (const SumOfSquares& sum : squares) one[0].merge(sum);
    reduced(one, "gradient norm");
    total = one[0];
  }
  const double norm = std::sqrt(total.value()) * std::abs(options.grad_scale);
  recorder_.stats.grad_norm = norm;
  // A norm that is not a number clips nothing.
  if (options.max_grad_norm > 0) accord.clip = std::min(1.0, options.max_grad_norm / (norm + kClipEps));
  recorder_.stats.clip = accord.clip;
  return accord;
}

const StepStats& Optimizer::Impl::step(std::span<void* const> gradients, const StepOptions& options) {
  require_whole();
  const int64_t number = state_->steps + 1;
  const std::string what = fmt::format("step {}", number);
  recorder_.start(number, options.trace);
  if (options.parameter_stats) recorder_.stats.parameters.resize(problem_.parameters.size());
  const Accord accord = or_refuse(what, [&] { return prepare(gradients, options); });
  or_break(what, [&] {
    if (accord.skip) {
      recorder_.stats.skipped = true;
    } else {
      std::vector<SumOfSquares> changes(options.parameter_stats ? problem_.parameters.size() : 0);
      const engine::StepInput input{gradients, options.grad_scale * accord.clip, number,
                                    options.parameter_stats ? &changes : nullptr};
      executor_->run(program(accord.active), input, *communicator_);
      if (options.parameter_stats) {
        const std::vector<double> sums = reduced(changes, "changes");
        for (size_t p = 0; p < sums.size(); ++p) {
          const auto elements = static_cast<double>(element_count(problem_.parameters[p].shape));
          recorder_.stats.parameters[p].update_rms = elements > 0 ? std::sqrt(sums[p] / elements) : 0;
        }
      }
      for (size_t p = 0; p < accord.active.size(); ++p) state_->updates[p] += accord.active[p] ? 1 : 0;
    }
    state_->steps = number;
  });
  recorder_.finish();
  return recorder_.last_stats;
}

double Optimizer::Impl::grad_norm(std::span<void* const> gradients, double grad_scale) {
  require_whole();
  StepOptions options;
  options.grad_norm = true;
  options.grad_scale = grad_scale;
  recorder_.start(state_->steps + 1, false);
  or_refuse(fmt::format("the gradient norm before step {}", state_->steps + 1),
            [&] { return prepare(gradients, options); });
  return recorder_.stats.grad_norm;
}

void Optimizer::Impl::reconnect(Communicator& communicator) {
  engine::together(communicator, "reconnect", [&] {
    if (communicator.rank() == rank_ && communicator.size() == ranks_) return;
    throw InvalidArgument(fmt::format("reconnect: rank {} of {}, expected rank {} of {}", communicator.rank(),
                                      communicator.size(), rank_, ranks_));
  });
  executor_->abandon();
  communicator_ = &communicator;
  engine::agree_on_plan(problem_, plan_, options_, memory_, *communicator_);
  // Where one rank broke off, another may have come through, or not have begun.
  int64_t most[] = {broken_.empty() ? 0 : 1, state_->steps, -state_->steps};
  communicator_->all_reduce(most, ReduceOp::kMax, "compare steps")->wait();
  const bool whole = most[0] == 0 && most[1] == -most[2];
  if (!whole && broken_.empty()) broken_ = "reconnected to ranks of which some broke off: load a state first";
}

engine::StateSlice Optimizer::Impl::find_state(const std::string& name) {
  for (engine::StateSlice& slice : state_->slices()) {
    if (slice.info.name == name) return std::move(slice);
  }
  throw InvalidArgument(fmt::format("state \"{}\": there is none of that name", name));
}

StateTensor Optimizer::Impl::export_state(const std::string& name) {
  require_whole();
  const engine::StateSlice slice = find_state(name);
  return or_break("export of state", [&] { return engine::gather(slice, *communicator_); });
}

void Optimizer::Impl::import_state(std::span<const StateTensor> tensors) {
  std::vector<engine::StateSlice> slices = state_->slices();
  std::map<std::string, engine::StateSlice*> by_name;
  for (engine::StateSlice& slice : slices) by_name[slice.info.name] = &slice;
  std::set<std::string_view> given;
  engine::together(*communicator_, "check state", [&] {
    for (const StateTensor& tensor : tensors) {
      if (!given.insert(tensor.name).second) {
        throw InvalidArgument(fmt::format("state \"{}\": given twice", tensor.name));
      }
      const auto found = by_name.find(tensor.name);
      if (found == by_name.end()) {
        throw InvalidArgument(fmt::format("state \"{}\": there is none of that name", tensor.name));
      }
      engine::check_like(found->second->info, tensor);
    }
  });
  // Or some would go on while others are still broken.
  engine::check_same(*communicator_, "import state", fmt::format("{}", fmt::join(given, "\n")));
  for (const StateTensor& tensor : tensors) {
    engine::fill(*by_name.at(tensor.name), tensor.data);
    by_name.erase(tensor.name);
  }
  if (by_name.empty()) broken_.clear();
}

void Optimizer::Impl::save(const std::string& directory) {
  require_whole();
  const std::vector<engine::StateSlice> slices = state_->slices();
  or_refuse(fmt::format("the checkpoint after step {}", state_->steps), [&] {
    engine::save_checkpoint(directory, {state_->steps, {}}, slices, *communicator_);
  });
}

void Optimizer::Impl::load(const std::string& directory) {
  const std::vector<engine::StateSlice> slices = state_->slices();
  try {
    engine::load_checkpoint(directory, slices, *communicator_);
  } catch (const InvalidArgument&) {
    throw;  // nothing was changed
  } catch (const Error& error) {
    give_up(fmt::format("loading \"{}\" broke off: {}", directory, error.what()));
    throw;  // on every rank: they may try again
  } catch (...) {
    break_off(fmt::format("loading \"{}\"", directory));
  }
  broken_.clear();
}

Optimizer::Optimizer(Problem problem, OptimizerOptions options, Communicator& communicator,
                     std::vector<ParameterMemory> memory)
    : impl_(std::make_unique<Impl>(std::move(problem), std::move(options), communicator, std::move(memory))) {}
Optimizer::~Optimizer() = default;
Optimizer::Optimizer(Optimizer&&) noexcept = default;
Optimizer& Optimizer::operator=(Optimizer&&) noexcept = default;

const Problem& Optimizer::problem() const { return impl_->problem_; }
const Plan& Optimizer::plan() const { return impl_->plan_; }
int64_t Optimizer::scratch_bytes() const { return impl_->executor_->scratch_bytes(); }
int32_t Optimizer::groups() const { return static_cast<int32_t>(impl_->options_.groups.size()); }
Group& Optimizer::group(int32_t index) {
  if (index < 0 || index >= groups()) {
    throw InvalidArgument(fmt::format("group {}: expected 0 to {}", index, groups() - 1));
  }
  return impl_->options_.groups[index];
}
int64_t Optimizer::steps() const { return impl_->state_->steps; }

const StepStats& Optimizer::step(std::span<void* const> gradients, const StepOptions& options) {
  return impl_->step(gradients, options);
}
double Optimizer::grad_norm(std::span<void* const> gradients, double grad_scale) {
  return impl_->grad_norm(gradients, grad_scale);
}
const StepStats& Optimizer::last_step() const { return impl_->recorder_.last_stats; }
const std::vector<TraceEvent>& Optimizer::trace() const { return impl_->recorder_.last_events; }

std::vector<StateInfo> Optimizer::state() const {
  std::vector<StateInfo> out;
  for (const engine::StateSlice& slice : impl_->state_->slices()) out.push_back(slice.info);
  return out;
}
StateTensor Optimizer::export_state(const std::string& name) { return impl_->export_state(name); }
void Optimizer::import_state(std::span<const StateTensor> tensors) { impl_->import_state(tensors); }
void Optimizer::save(const std::string& directory) { impl_->save(directory); }
void Optimizer::load(const std::string& directory) { impl_->load(directory); }
void Optimizer::reconnect(Communicator& communicator) { impl_->reconnect(communicator); }

}  // namespace muster
