// What ranks agree upon before they change anything: plans, replicas, and what a step is about. Where they do not,
// every rank throws the same kind of error, naming what differs.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/kernels.h"
#include "muster/communicator.h"
#include "muster/optimizer.h"
#include "plan/catalog.h"

namespace muster::engine {

// What this rank has of every parameter.
struct Holdings {
  Holdings(const plan::Catalog& catalog, int32_t rank);

  std::vector<int64_t> elements;
  std::vector<int32_t> replica;      // which of the replicas
  std::vector<int32_t> replicas;     // how many there are
  std::vector<uint64_t> shard_keys;  // equal for replicas

  bool any(size_t parameter) const { return elements[parameter] > 0; }
};

// Throws InvalidArgument, naming the parameter, unless there is memory of the right form for what is held.
void check_memory(const Problem& problem, const Holdings& holdings, std::span<const ParameterMemory> memory,
                  int32_t groups, int32_t rank);

// The same for one of them.
void check_memory(const Problem& problem, const Holdings& holdings, size_t parameter, const ParameterMemory& memory,
                  int32_t groups, int32_t rank);

// Ranks that plan different things would wait for messages nobody sends.
void agree_on_plan(const Problem& problem, const Plan& plan, const OptimizerOptions& options,
                   std::span<const ParameterMemory> memory, Communicator& communicator);

// Replicas start from the same weights.
void agree_on_replicas(const Problem& problem, const Holdings& holdings, std::span<const ParameterMemory> memory,
                       kernels::Kernels& kernels, Communicator& communicator);

// What one rank says of a step before it changes anything: whether it refuses, its hyperparameters, and which gradients
// it has. All ranks' words are summed; then every rank knows the same of all.
struct Ballots {
  std::vector<int64_t> words;
  std::string refusal;  // of this rank; empty: none
};
// Where the words are: the first `zeros` are 0 if all agree; from `present` on, one a parameter, not 0 if somebody has
// a gradient of it.
//
// Then two words per rank, which that rank alone fills in, so that an error can name ranks: `at`, the step that it
// makes and whether it refuses it; `prints`, the fingerprint of its gradients in steps that compare them.
struct BallotLayout {
  BallotLayout(size_t groups, size_t parameters, size_t ranks)
      : replicas(2 + groups),
        zeros(replicas + parameters),
        present(zeros),
        at(present + parameters),
        prints(at + ranks),
        words(prints + ranks) {}
  size_t replicas;  // one per parameter: 0 if its replicas agree
  size_t zeros;
  size_t present;
  size_t at;
  size_t prints;
  size_t words;
};

// How the sum of ballots is called. Without the number of the step: ranks that have done other numbers of steps meet
// here, and learn of it from each other's words.
inline constexpr std::string_view kAgreement = "agreement on a step";
std::string wave_agreement(size_t wave);

// Gradients of replicas are compared in the first steps, and now and then later.
inline bool compares_gradients(int64_t step) { return (step & (step - 1)) == 0 || step % 64 == 0; }

// What a step is about, on one rank.
struct StepQuestion {
  const Problem& problem;
  const Holdings& holdings;
  std::span<const ParameterMemory> memory;
  const std::vector<Group>& groups;
  int64_t number = 1;
  int64_t seed = 0;  // of stochastic rounding
  int32_t rank = 0;
  int32_t ranks = 1;
  bool recorded = false;  // it is recorded or replayed, by all ranks or by none: NCCL knows nothing in between
};

// `refusal` is what this rank has found before; empty: nothing.
Ballots fill_in(const StepQuestion& question, std::span<void* const> gradients, const StepOptions& options,
                const std::string& refusal = {});
// Fingerprints of the gradients that replicas have too, for the words of this rank: of one dtype, for chosen
// parameters. Absent gradients are among them.
enum class PrintChoice : uint8_t { kSkip, kCompare, kCompareAndName };
std::vector<kernels::FingerprintRange> gradient_prints(const StepQuestion& question, std::span<void* const> gradients,
                                                       Dtype dtype,
                                                       const std::function<PrintChoice(size_t parameter)>& choose);
// Which parameters take part. Throws InvalidArgument, naming what they disagree on.
std::vector<bool> count(const StepQuestion& question, std::span<const int64_t> sums, const std::string& refusal);
// The first parameter whose word is not 0 has gradients that are not finite on so many ranks.
[[noreturn]] void refuse_non_finite(const StepQuestion& question, std::span<const int64_t> bad);

}  // namespace muster::engine
