// The path of one step: HostStep where kernel calls return when their work is done, DeviceStep where they return
// before.
//
// Both go the same way. Ranks agree in a control reduction; the pipeline runs the waves; the executor carries out each
// of them. A whole step agrees before the pipeline, an overlapped one in it, wave by wave.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "engine/step/control_reduction.h"
#include "engine/step/parameter_stats.h"
#include "engine/step/pipeline.h"
#include "engine/step/status.h"
#include "engine/step/step_context.h"
#include "engine/step/wave_executor.h"
#include "engine/step/wave_readiness.h"
#include "muster/error.h"
#include "muster/optimizer.h"

namespace muster::engine {

class StepPath {
 public:
  // References outlive this object; options need not.
  StepPath(const StepContext& context, const OptimizerOptions& options, OptimizerStatus& status);
  StepPath(const StepPath&) = delete;
  StepPath& operator=(const StepPath&) = delete;
  virtual ~StepPath() = default;

  // All ranks make these calls. Groups of a request are read during the call only.

  // A whole step.
  virtual const StepStats& step(const StepRequest& request) = 0;
  // An overlapped step: begin(), ready() for some gradients, on this rank alone, and finish() with all of them.
  virtual void begin(const StepRequest& request) = 0;
  virtual void ready(int32_t parameter, void* gradient) = 0;
  virtual const StepStats& finish(const StepRequest& request) = 0;
  bool under_way() const { return pipeline_.under_way(); }
  // The norm that step() would clip by.
  virtual double grad_norm(const StepRequest& request) = 0;

  // Allocates what the calls of any step need, before the first. Not collective.
  virtual void reserve(std::span<const Group>) {}
  // Waits for the steps under way on a device. Refusals of other ranks go to the status.
  virtual void settle() {}
  // Drops whatever is under way.
  virtual void drop();

  int64_t scratch_bytes() const { return executor_.scratch_bytes(); }

  // The status becomes broken, for this reason.
  void give_up(Failure why);
  // In a catch block, after an error that leaves weights partly updated or ranks in different states: aborts the
  // communicator, so that no rank waits for this one, and rethrows.
  [[noreturn]] void break_off(std::string_view what);
  // Errors of `work` break off.
  template <typename Work>
  auto or_break(std::string_view what, Work work) {
    try {
      return work();
    } catch (...) {
      break_off(what);
    }
  }
  // Likewise, except for InvalidArgument and ResourceError: all ranks throw them before anything was changed.
  template <typename Work>
  auto or_refuse(std::string_view what, Work work) {
    try {
      return work();
    } catch (const InvalidArgument&) {
      throw;
    } catch (const ResourceError&) {
      throw;
    } catch (...) {
      break_off(what);
    }
  }
  // At the end of a step on the host, after its last exchange: if a rule threw on any rank, the status becomes broken,
  // that rank throws what its rule threw, and others throw CommError.
  void settle_rules(const std::string& what);

 protected:
  static std::string title(int64_t number) { return fmt::format("step {}", number); }
  StepTimer& timer() { return context_.timer; }
  size_t parameters() const { return context_.problem.parameters.size(); }
  using Active = std::function<std::vector<bool>()>;  // called in steps with row factors only
  // After the waves of a step: multiplies the rows of parameters that do not take part.
  void scale_rows_of_others(const StepInput& step, const Active& active);
  // Counts the messages of that, if its calls were not made because their inputs were those of the last step.
  void count_traffic_of_others(const StepInput& step, const Active& active);
  // An overlapped step as it begins, by the hyperparameters of the snapshot.
  StepRequest early_request(const StepRequest& request) const {
    StepRequest out{.number = request.number, .groups = snapshot_};
    out.options.row_factors = request.options.row_factors;
    return out;
  }
  // Copies hyperparameters to the snapshot, into the memory that it has.
  void keep(std::span<const Group> groups) {
    if (groups.data() != snapshot_.data()) snapshot_.assign(groups.begin(), groups.end());
  }

  // Calls work(input, parameters) if rows of parameters that do not take part have factors in this step.
  template <typename Work>
  void with_others(const StepInput& step, const Active& active, Work work);

  const StepContext& context_;
  OptimizerStatus& status_;
  // Hyperparameters of an overlapped step, as they were when it began; on a device also the last valid ones.
  std::vector<Group> snapshot_;
  WaveExecutor executor_;
  ParameterStatsCollector parameter_stats_;
  ControlReduction control_;
  std::optional<WaveReadiness> readiness_;  // with OptimizerOptions::overlap
  Pipeline pipeline_;
};

std::unique_ptr<StepPath> make_step_path(const StepContext& context, const OptimizerOptions& options,
                                         OptimizerStatus& status);

}  // namespace muster::engine
