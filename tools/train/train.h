// A training from beginning to end, or from where another one stopped, and what came of it.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "muster/plan.h"
#include "train/checkpoint.h"
#include "train/trainer.h"

namespace muster::train {

struct TrainOptions {
  int64_t until = 0;       // stop after this step; 0: after the recipe's last
  std::string save{};      // directory for checkpoints; empty: none
  int64_t save_every = 0;  // steps; 0: only at the end
  std::string resume{};    // directory of a checkpoint to resume; empty: start at step 0
  int64_t eval_every = 0;  // steps between held-out losses, the first before any step; 0: only in the end
  bool trace = false;      // keep what happened in the last step
  // Called on every rank after each step; `done` counts from 1.
  std::function<void(int64_t done, const TrainedStep& step)> progress = [](int64_t, const TrainedStep&) {};
  std::function<void(const HeldOut&)> evaluated = [](const HeldOut&) {};  // the same, after each of those
};

struct TrainResult {
  std::vector<double> losses;         // of every step, in nats a token; those before a resumed step, too
  int64_t first_step = 0;             // done before this run; the times are of the others
  std::vector<int64_t> step_ns;       // on this rank, each
  std::vector<int64_t> optimizer_ns;  // of it
  std::vector<HeldOut> held_out{};    // with eval_every, or as a resumed run had it; the last is of the end
  double final_loss = 0;              // in the end, of text that was not learnt from
  double unigram_entropy = 0;         // of the text: what a loss without any context would be
  int64_t parameters = 0;             // weights in all
  int64_t tokens_a_step = 0;
  Problem problem{};
  Plan plan{};
  PlanSummary summary{};
  std::vector<run::Timeline> timelines{};  // one a rank, on rank 0, if asked for

  double seconds() const;          // in steps
  double tokens_per_s() const;     // 0 if no step was made
  double optimizer_share() const;  // of the time in steps, from 0 to 1
};

// Held-out losses of several runs after the same number of steps.
struct HeldOutSpread {
  int64_t step = 0;
  double mean = 0;
  double deviation = 0;  // of a sample; NaN of one run
};
// Steps that not all runs have are left out.
std::vector<HeldOutSpread> held_out_spread(std::span<const TrainResult> runs);

// All ranks call it; losses are the same on all. Throws InvalidArgument for what cannot be planned, saved or resumed,
// Error if the loss does not stay finite.
TrainResult train(const Recipe& recipe, const Corpus& corpus, const Execution& execution, Communicator& communicator,
                  const TrainOptions& options = {});

}  // namespace muster::train
