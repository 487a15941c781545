// A step that starts before all its gradients are there: wave after wave in the plan's order, each as soon as this rank
// has the gradients of its parameters.
//
// Ranks call the same collectives in the same order, whatever the order in which gradients reach them: a wave that is
// ready early waits for its turn. Before a wave changes anything ranks agree as before a whole step, on what is known
// by then; the last wave waits until all ranks have called step(), so that each of them can still refuse.
//
// On a device nobody waits: what ranks agree upon stays there, and a wave that was not agreed upon is enqueued all the
// same and changes nothing. So every wave asks, about itself and those before it; the last one's answer is the step's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/step/agreement.h"
#include "engine/step/control.h"
#include "engine/step/executor.h"
#include "engine/step/recorder.h"
#include "muster/error.h"
#include "plan/catalog.h"

namespace muster::engine {

// Throws InvalidArgument if a step that starts early cannot keep what the options ask for.
void check_overlap(const StepOptions& options);

class Overlap {
 public:
  // All references outlive it. The plan has elementwise parameters in its last wave.
  Overlap(const plan::Catalog& catalog, const Plan& plan, const Holdings& holdings, const std::vector<Group>& groups,
          Control& control, Executor& executor, Recorder& recorder);

  // The program is that of the parameters whose turn it is; it stays until the step is over. `refusal` is why this rank
  // refuses the step already; empty: it does not.
  void begin(int64_t number, const Program& program, const Executor::Link& link, std::string refusal);
  bool under_way() const { return !stages_.empty(); }
  bool changed() const { return started_ > 0; }  // weights are in between

  // Throws InvalidArgument, which step() then refuses, too.
  void mark(int32_t parameter, void* gradient);
  // As far as it goes without waiting.
  void advance();
  bool can_advance() { return at_ < stages_.size() && refused_.empty() && possible(stages_[at_]); }
  // No more gradients come. Why this rank refuses the step; empty: it does not.
  const std::string& close(Gradients gradients, const StepOptions& options);
  // The rest, waiting; on a device enqueued. Throws InvalidArgument on all ranks if any refuses; not on a device.
  void finish();
  void drop();  // what is under way

  bool active(size_t parameter) const { return active_[parameter] != 0; }  // took part; not on a device

 private:
  // In the order of all ranks. Three waves are in flight at most: w starts when w - 3 is done.
  enum class Kind : uint8_t { kAsk, kAgree, kStart, kCompute, kFinish };
  struct Stage {
    Kind kind;
    size_t wave;
  };

  Executor::Run run() const { return {*program_, input_, link_}; }
  void line_up(size_t waves, size_t behind);
  bool possible(const Stage& stage);
  void carry_out(const Stage& stage);
  void ask(size_t wave);
  void agree(size_t wave);
  std::string refusal(Gradients gradients, const StepOptions& options) const;
  const std::string& name(size_t parameter) const { return catalog_.problem().parameters[parameter].name; }

  const plan::Catalog& catalog_;
  const Holdings& holdings_;
  const std::vector<Group>& groups_;
  Control& control_;
  Executor& executor_;
  Recorder& recorder_;
  std::vector<std::vector<size_t>> waves_of_;  // a parameter, ascending

  std::vector<Stage> stages_;  // of the step under way
  size_t at_ = 0;              // the next of them
  const Program* program_ = nullptr;
  StepInput input_;
  Executor::Link link_;
  std::vector<void*> gradients_;
  std::vector<bool> due_;  // their groups take part
  std::vector<bool> ready_;
  std::vector<size_t> missing_;  // gradients of this rank, a wave
  std::vector<int32_t> active_;  // a word a parameter: it takes part, as far as is known
  std::vector<uint64_t> groups_were_;
  bool may_start_ = true;  // before step()
  bool all_here_ = false;  // step() was called
  bool settled_ = false;   // on every rank
  size_t started_ = 0;
  Ballots ballots_;
  std::string refusal_;  // of this rank
  Failure refused_;      // by any of them
  std::unique_ptr<Request> asked_;
};

}  // namespace muster::engine
