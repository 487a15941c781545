#include "engine/step/agreement.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/hash.h"
#include "engine/state/state.h"
#include "engine/step/equality_check.h"
#include "engine/step/hyperparameters.h"
#include "muster/error.h"
#include "plan/plan_hash.h"

namespace muster::engine {

namespace {

constexpr const char* kSomeHaveNone = "some replicas have a gradient and some have none";

// Words that come before those of groups and parameters.
enum : size_t { kRefused, kStepCheck, kFixedWords };

uint64_t fingerprint(const StepOptions& options, int64_t step, int64_t seed, bool recorded) {
  base::Hash print;
  print.add(step);
  print.add(seed);
  print.add(static_cast<int64_t>(recorded));
  print.add(options.grad_scale);
  print.add(options.max_grad_norm);
  print.add(static_cast<int64_t>(options.non_finite));
  print.add(static_cast<int64_t>(options.grad_norm));
  print.add(static_cast<int64_t>(options.parameter_stats));
  return print.value();
}

void check(const StepOptions& options) {
  if (!std::isfinite(options.grad_scale)) {
    throw InvalidArgument(fmt::format("grad_scale {}: expected a finite number", options.grad_scale));
  }
  if (!(options.max_grad_norm >= 0)) {
    throw InvalidArgument(fmt::format("max_grad_norm {}: expected at least 0", options.max_grad_norm));
  }
}

std::vector<int64_t> ranks_with(std::span<const int64_t> words, int64_t value) {
  std::vector<int64_t> out;
  for (size_t r = 0; r < words.size(); ++r) {
    if (words[r] == value) out.push_back(static_cast<int64_t>(r));
  }
  return out;
}

// "rank 2", "ranks 0, 1, 3"
std::string named(const std::vector<int64_t>& ranks) {
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "));
}

// "4 on ranks 0, 1; 7 on rank 2"
std::string by_value(std::span<const int64_t> words, const std::function<int64_t(int64_t)>& meaning) {
  std::string out;
  for (size_t r = 0; r < words.size(); ++r) {
    const std::vector<int64_t> alike = ranks_with(words, words[r]);
    if (alike[0] != static_cast<int64_t>(r)) continue;
    out += fmt::format("{}{} on {}", out.empty() ? "" : "; ", meaning(words[r]), named(alike));
  }
  return out;
}

// For every rank the first rank that holds the same of a parameter; -1 if it holds nothing.
std::vector<int32_t> twins(const Problem& problem, const Parameter& parameter) {
  const layout::Partition partition(problem.meshes[parameter.layout.mesh], parameter.layout, parameter.shape,
                                    parameter.name);
  std::vector<int32_t> twin(problem.ranks, -1);
  for (int32_t p = 0; p < partition.positions(); ++p) {
    if (partition.local_elements(p) > 0) twin[partition.rank(p)] = partition.rank(partition.first_replica(p));
  }
  return twin;
}

// ": those of ranks 2, 3 are not those of rank 0", by one print per rank. Empty if none differ.
std::string differing(const std::vector<int32_t>& twin, std::span<const int64_t> prints) {
  std::vector<int64_t> others;
  std::vector<int64_t> first;
  for (size_t rank = 0; rank < twin.size(); ++rank) {
    if (twin[rank] < 0 || prints[rank] == prints[twin[rank]]) continue;
    others.push_back(static_cast<int64_t>(rank));
    if (std::find(first.begin(), first.end(), twin[rank]) == first.end()) first.push_back(twin[rank]);
  }
  return others.empty() ? "" : fmt::format(": those of {} are not those of {}", named(others), named(first));
}

// Why the replicas of a parameter do not agree. A rank's print is of all its gradients that are compared, so it tells
// something only of ranks that hold the same of all those parameters.
Failure different_gradients(const Problem& problem, size_t parameter, std::span<const int64_t> prints) {
  std::vector<int32_t> twin = twins(problem, problem.parameters[parameter]);
  for (const Parameter& other : problem.parameters) {
    const std::vector<int32_t> theirs = twins(problem, other);
    const bool compared = std::find(theirs.begin(), theirs.end(), -1) != theirs.end() ||
                          std::set(theirs.begin(), theirs.end()).size() < theirs.size();
    for (size_t rank = 0; compared && rank < twin.size(); ++rank) {
      if (twin[rank] >= 0 && theirs[rank] != theirs[twin[rank]]) twin[rank] = -1;
    }
  }
  for (size_t rank = 0; rank < twin.size(); ++rank) {
    if (twin[rank] >= 0 && (prints[rank] == 0) != (prints[twin[rank]] == 0)) return kSomeHaveNone;
  }
  return {"its replicas have different gradients" + differing(twin, prints), ErrorCode::kReplicaGradientsDiffer,
          problem.parameters[parameter].name};
}

}  // namespace

Holdings::Holdings(const plan::Catalog& catalog, int32_t rank) {
  for (int32_t p = 0; p < static_cast<int32_t>(catalog.problem().parameters.size()); ++p) {
    const layout::Partition& partition = catalog.partition(p);
    const int32_t position = partition.position_of(rank);
    elements.push_back(position < 0 ? 0 : partition.local_elements(position));
    replica.push_back(position < 0 ? 0 : partition.replica(position));
    replicas.push_back(partition.replicas());
    base::Hash key;
    if (elements.back() > 0) {
      const layout::Run first = partition.shard(position)[0];
      for (int d = 0; d < first.box.dims; ++d) key.add(first.box.begin[d]);
      key.add(elements.back());
    }
    shard_keys.push_back(key.value());
  }
}

void check_memory(const Problem& problem, const Holdings& holdings, std::span<const ParameterMemory> memory,
                  int32_t groups, int32_t rank) {
  const size_t parameters = problem.parameters.size();
  if (memory.size() != parameters) {
    throw InvalidArgument(fmt::format("memory for {} parameters, expected {}", memory.size(), parameters));
  }
  for (size_t p = 0; p < parameters; ++p) check_memory(problem, holdings, p, memory[p], groups, rank);
}

void check_memory(const Problem& problem, const Holdings& holdings, size_t p, const ParameterMemory& mine,
                  int32_t groups, int32_t rank) {
  const Parameter& parameter = problem.parameters[p];
  const auto refuse = [&](const std::string& why) {
    throw InvalidArgument(fmt::format("parameter '{}': {}", parameter.name, why));
  };
  if (mine.group < 0 || mine.group >= groups) {
    refuse(fmt::format("group {}: expected 0 to {}", mine.group, groups - 1));
  }
  if (parameter.dtype == Dtype::kF16 || parameter.grad_dtype == Dtype::kF16) {
    refuse("f16: expected f32 or bf16");
  }
  if ((mine.form == WeightForm::kF32) != (parameter.dtype == Dtype::kF32)) {
    refuse(fmt::format("its form stores {}, its dtype is {}", mine.form == WeightForm::kF32 ? "f32" : "bf16",
                       parameter.dtype == Dtype::kF32 ? "f32" : "bf16"));
  }
  if (holdings.any(p) && mine.weight == nullptr) {
    refuse(fmt::format("no memory for the {} elements of rank {}", holdings.elements[p], rank));
  }
  if (holdings.any(p) && mine.extra == nullptr && extra_bytes(mine.form) > 0) {
    refuse(fmt::format("no {} on rank {}", mine.form == WeightForm::kBf16Master ? "master" : "mantissa", rank));
  }
  if (parameter.state_keeper != StateKeeper::kHolders) return;
  if (holdings.any(p) && mine.momentum == nullptr) refuse(fmt::format("no memory for momentum on rank {}", rank));
  if (holdings.any(p) && mine.second == nullptr && parameter.algorithm == Algorithm::kAdamW) {
    refuse(fmt::format("no memory for second moments on rank {}", rank));
  }
  const StatisticsLayout statistics = statistics_layout(problem, static_cast<int32_t>(p), rank);
  if (!statistics.shape.empty() && element_count(statistics.local_shape) > 0 && mine.statistics == nullptr) {
    refuse(
        fmt::format("no memory for statistics of shape [{}] on rank {}", fmt::join(statistics.local_shape, ","), rank));
  }
}

void agree_on_plan(const Problem& problem, const Plan& plan, const OptimizerOptions& options,
                   std::span<const ParameterMemory> memory, Communicator& communicator) {
  const auto ranks = static_cast<size_t>(communicator.size());
  base::Hash all_options;
  all_options.add(plan.hash);
  all_options.add(static_cast<int64_t>(options.momentum));
  all_options.add(options.seed);
  all_options.add(static_cast<int64_t>(options.overlap));
  all_options.add(static_cast<int64_t>(options.graph));
  all_options.add(static_cast<int64_t>(options.groups.size()));
  std::vector<uint64_t> prints = plan::parameter_fingerprints(problem);
  for (size_t p = 0; p < prints.size(); ++p) {
    base::Hash print;
    print.add(prints[p]);
    print.add(static_cast<int64_t>(memory[p].form));
    print.add(static_cast<int64_t>(memory[p].group));
    prints[p] = print.value();
    all_options.add(prints[p]);
  }
  const uint64_t mine[] = {all_options.value(), prints.size()};
  std::vector<uint64_t> all(2 * ranks);
  communicator.all_gather(mine, all.data(), sizeof mine, "compare plans")->wait();
  bool same = true;
  for (size_t r = 0; r < ranks; ++r) {
    same = same && all[2 * r] == all[0];
    if (all[2 * r + 1] == all[1]) continue;
    throw InvalidArgument(
        fmt::format("ranks disagree: rank 0 has {} parameters and rank {} has {}", all[1], r, all[2 * r + 1]));
  }
  if (same) return;
  std::vector<uint64_t> others(prints.size() * ranks);
  communicator
      .all_gather(prints.data(), others.data(), static_cast<int64_t>(prints.size() * sizeof(uint64_t)),
                  "compare parameters")
      ->wait();
  for (size_t p = 0; p < prints.size(); ++p) {
    for (size_t r = 0; r < ranks; ++r) {
      if (others[r * prints.size() + p] == others[p]) continue;
      throw InvalidArgument(
          fmt::format("ranks disagree: parameter {} ('{}' on rank {}) is not the same on ranks 0 and {}", p,
                      problem.parameters[p].name, communicator.rank(), r));
    }
  }
  throw InvalidArgument("ranks disagree: same parameters, but other options, cost tables or versions");
}

void agree_on_replicas(const Problem& problem, const Holdings& holdings, std::span<const ParameterMemory> memory,
                       kernels::Kernels& kernels, Communicator& communicator) {
  constexpr int64_t kChunk = int64_t{16} << 20;
  std::vector<std::byte> copy;
  std::vector<int64_t> words(problem.parameters.size());
  std::vector<int64_t> prints(problem.parameters.size());
  for (size_t p = 0; p < words.size(); ++p) {
    const int32_t replicas = holdings.replicas[p];
    if (replicas == 1 || !holdings.any(p)) continue;
    const ParameterMemory& mine = memory[p];
    base::Hash print;
    print.add(holdings.shard_keys[p]);
    const auto add = [&](const void* data, int64_t width) {
      const int64_t bytes = holdings.elements[p] * width;
      for (int64_t at = 0; at < bytes; at += kChunk) {
        copy.resize(static_cast<size_t>(std::min(kChunk, bytes - at)));
        kernels.read(copy.data(), static_cast<const std::byte*>(data) + at,
                     {1, static_cast<int64_t>(copy.size()), 0, 0});
        print.add(std::span<const std::byte>(copy));
      }
    };
    add(mine.weight, weight_bytes(mine.form));
    if (extra_bytes(mine.form) > 0) add(mine.extra, extra_bytes(mine.form));
    prints[p] = static_cast<int64_t>(print.value());
    words[p] = ballot(print.value(), holdings.replica[p], replicas);
  }
  communicator.all_reduce(words, ReduceOp::kSum, "compare replicas")->wait();
  for (size_t p = 0; p < words.size(); ++p) {
    if (words[p] == 0) continue;
    std::vector<int64_t> all(static_cast<size_t>(communicator.size()));
    communicator.all_gather(&prints[p], all.data(), sizeof prints[p], "name replicas")->wait();
    const std::string& name = problem.parameters[p].name;
    throw InvalidArgument({fmt::format("parameter '{}': replicas start from different weights{}; give all of them one "
                                       "rank's, or a layout that says they differ",
                                       name, differing(twins(problem, problem.parameters[p]), all)),
                           ErrorCode::kReplicaWeightsDiffer, name});
  }
}

std::string wave_agreement(size_t wave) { return fmt::format("agreement on wave {} of a step", wave); }

Ballots fill_in(const StepQuestion& question, std::span<void* const> gradients, const StepOptions& options,
                const std::string& refusal) {
  const auto& [problem, holdings, memory, groups, number, seed, rank, ranks, recorded] = question;
  const size_t parameters = problem.parameters.size();
  const BallotLayout layout(groups.size(), parameters, static_cast<size_t>(problem.ranks));
  Ballots ballots{std::vector<int64_t>(layout.words), {}};
  std::vector<int64_t>& words = ballots.words;
  try {
    if (!refusal.empty()) throw InvalidArgument(refusal);
    if (gradients.size() != parameters) {
      throw InvalidArgument(fmt::format("{} gradients, expected {}", gradients.size(), parameters));
    }
    check(options);
    for (size_t g = 0; g < groups.size(); ++g) {
      try {
        validate(groups[g]);
      } catch (const InvalidArgument& error) {
        throw InvalidArgument(fmt::format("group {}: {}", g, error.what()));
      }
    }
  } catch (const InvalidArgument& error) {
    ballots.refusal = error.what();
    words[kRefused] = 1;
  }
  words[layout.at + static_cast<size_t>(rank)] = number * 2 + words[kRefused];
  words[kStepCheck] = ballot(fingerprint(options, number, seed, recorded), rank, ranks);
  int64_t* const group_words = words.data() + kFixedWords;
  for (size_t g = 0; g < groups.size(); ++g) group_words[g] = ballot(fingerprint(groups[g]), rank, ranks);
  int64_t* const replicas_differ = words.data() + layout.replicas;
  int64_t* const present = words.data() + layout.present;
  for (size_t p = 0; p < parameters && ballots.refusal.empty(); ++p) {
    const bool sits_out = number % groups[memory[p].group].every != 0;
    if (sits_out || !holdings.any(p) || gradients[p] == nullptr) continue;
    present[p] = 1;
    if (problem.grad_sync) continue;  // replicas have gradients of their own
    replicas_differ[p] = ballot(holdings.shard_keys[p], holdings.replica[p], holdings.replicas[p]);
  }
  return ballots;
}

std::vector<kernels::FingerprintRange> gradient_prints(const StepQuestion& question, std::span<void* const> gradients,
                                                       Dtype dtype,
                                                       const std::function<PrintChoice(size_t parameter)>& choose) {
  const auto& [problem, holdings, memory, groups, number, seed, rank, ranks, recorded] = question;
  std::vector<kernels::FingerprintRange> out;
  if (problem.grad_sync || !compares_gradients(number)) return out;
  const BallotLayout layout(groups.size(), problem.parameters.size(), static_cast<size_t>(problem.ranks));
  for (size_t p = 0; p < problem.parameters.size(); ++p) {
    const bool sits_out = number % std::max<int64_t>(groups[memory[p].group].every, 1) != 0;
    const bool here = holdings.any(p) && holdings.replicas[p] > 1 && problem.parameters[p].grad_dtype == dtype;
    const PrintChoice choice = choose(p);
    if (sits_out || !here || choice == PrintChoice::kSkip) continue;
    out.push_back({holdings.elements[p], gradients[p], static_cast<int64_t>(layout.replicas + p),
                   static_cast<uint64_t>(ballot(1, holdings.replica[p], holdings.replicas[p])),
                   choice == PrintChoice::kCompareAndName ? 2 * p + 1 : 0});
  }
  return out;
}

std::vector<bool> count(const StepQuestion& question, std::span<const int64_t> words, const std::string& refusal) {
  const int64_t number = question.number;
  const size_t groups = question.groups.size();
  const Problem& problem = question.problem;
  const size_t parameters = problem.parameters.size();
  const BallotLayout layout(groups, parameters, static_cast<size_t>(problem.ranks));
  if (!refusal.empty()) throw InvalidArgument(fmt::format("step {}: {}", number, refusal));
  const auto at = words.subspan(layout.at, static_cast<size_t>(problem.ranks));
  if (words[kRefused] > 0) {
    std::vector<int64_t> refused(at.begin(), at.end());
    for (int64_t& word : refused) word %= 2;
    throw InvalidArgument(fmt::format("step {}: {} refused it", number, named(ranks_with(refused, 1))));
  }
  if (words[kStepCheck] != 0 && std::any_of(at.begin(), at.end(), [&](int64_t word) { return word != at[0]; })) {
    throw InvalidArgument(
        fmt::format("step {}: ranks disagree on the number of steps done: {}; load the same state on all", number,
                    by_value(at, [](int64_t word) { return word / 2 - 1; })));
  }
  if (words[kStepCheck] != 0) {
    throw InvalidArgument(
        fmt::format("step {}: ranks disagree on its options (grad_scale, max_grad_norm, non_finite, grad_norm, "
                    "parameter_stats, the seed or, where steps are recorded, trace)",
                    number));
  }
  for (size_t g = 0; g < groups; ++g) {
    if (words[kFixedWords + g] == 0) continue;
    throw InvalidArgument(fmt::format("step {}: ranks disagree on the hyperparameters of group {}", number, g));
  }
  const auto prints = words.subspan(layout.prints, static_cast<size_t>(problem.ranks));
  for (size_t p = 0; p < parameters; ++p) {
    if (words[layout.replicas + p] == 0) continue;
    const bool all_or_none = words[layout.present + p] % question.holdings.replicas[p] == 0;
    const Failure why =
        compares_gradients(number) && all_or_none ? different_gradients(problem, p, prints) : kSomeHaveNone;
    throw InvalidArgument(why.within(fmt::format("step {}: parameter '{}'", number, problem.parameters[p].name)));
  }
  std::vector<bool> active(parameters);
  for (size_t p = 0; p < parameters; ++p) active[p] = words[layout.present + p] > 0;
  return active;
}

void refuse_non_finite(const StepQuestion& question, std::span<const int64_t> bad) {
  const auto first = std::find_if(bad.begin(), bad.end(), [](int64_t n) { return n > 0; });
  throw InvalidArgument(fmt::format("step {}: parameter '{}': its gradient is not finite on {} of the ranks",
                                    question.number, question.problem.parameters[first - bad.begin()].name, *first));
}

}  // namespace muster::engine
