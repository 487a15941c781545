// What ranks say of a step before it changes anything: one list of words per rank. Their sum tells every rank the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/step/status.h"
#include "engine/step/step_context.h"

namespace muster::engine {

// One rank's words: whether it refuses the step, its hyperparameters, and which gradients it has.
struct ControlWords {
  std::vector<int64_t> words;
  StepStatus status;  // kRefused: this rank refuses, and its words say so
};

// Where the words are. In the sum, the first `zeros` are 0 if all ranks agree; one word per parameter from `present` on
// is not 0 if some rank has a gradient of it.
//
// Then two words per rank, which only that rank fills in, so that an error can name ranks: from `steps` on, the number
// of its step and whether it refuses it; from `fingerprints` on, the fingerprint of its gradients in steps that compare
// them.
struct ControlLayout {
  // Words before those of groups and parameters.
  enum : size_t { kRefused, kStepCheck, kRowFactors, kBadRowFactors, kFixedWords };

  ControlLayout(size_t groups, size_t parameters, size_t ranks)
      : replicas(kFixedWords + groups),
        zeros(replicas + parameters),
        present(zeros),
        steps(present + parameters),
        fingerprints(steps + ranks),
        words(fingerprints + ranks) {}
  size_t replicas;  // one per parameter: 0 if its replicas agree
  size_t zeros;
  size_t present;
  size_t steps;
  size_t fingerprints;
  size_t words;
};
ControlLayout control_layout(const Problem& problem, size_t groups);

// Labels of the all-reduces that sum the words. They do not contain the number of the step: ranks that have done
// different numbers of steps meet in this reduction, and learn that from each other's words.
inline constexpr std::string_view kAgreement = "agreement on a step";
std::string wave_agreement(size_t wave);

// Gradients of replicas are compared in steps 1, 2, 4, 8... and every 64th.
inline bool compares_gradients(int64_t step) { return (step & (step - 1)) == 0 || step % 64 == 0; }

// This rank's words, without fingerprints of gradients. `known` is a refusal that was found before.
ControlWords control_words(const StepContext& context, const StepRequest& request, const StepStatus& known = {});

// Fingerprints of gradients to add to this rank's words: of gradients of one dtype that replicas have, too, for chosen
// parameters. Absent gradients are included.
enum class Compare : uint8_t {
  kNo,
  kReplicas,       // among the replicas of the parameter
  kReplicasNamed,  // and in the word of this rank, so that an error can name ranks
};
using ChooseParameters = std::function<Compare(size_t parameter)>;
std::vector<kernels::FingerprintRange> gradient_fingerprints(const StepContext& context, const StepRequest& request,
                                                             Dtype dtype, const ChooseParameters& choose);

// From the sum of all ranks' words: which parameters take part. `own` is this rank's status. Throws InvalidArgument on
// every rank, naming what they disagree on or who refuses.
std::vector<bool> decide(const StepContext& context, int64_t step, std::span<const int64_t> sums,
                         const StepStatus& own = {});

// Throws InvalidArgument. One word per parameter: on how many ranks its gradient is not finite; one of them is not 0.
[[noreturn]] void refuse_non_finite(const Problem& problem, int64_t step, std::span<const int64_t> ranks_with_bad);

}  // namespace muster::engine
