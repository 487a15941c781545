// What an optimizer is made of: what it owns, and the path that its steps take.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/state/state.h"
#include "engine/step/holdings.h"
#include "engine/step/host_bridge.h"
#include "engine/step/programs.h"
#include "engine/step/row_scalings.h"
#include "engine/step/status.h"
#include "engine/step/step_context.h"
#include "engine/step/step_path.h"
#include "engine/step/step_timer.h"
#include "kernels/kernels.h"
#include "muster/optimizer.h"

namespace muster {

class Optimizer::Impl {
 public:
  Impl(Problem problem, OptimizerOptions options, Communicator& communicator, std::vector<ParameterMemory> memory);
  ~Impl();

  const StepStats& step(std::span<void* const> gradients, const StepOptions& options);
  void begin_step(const StepOptions& options);
  void ready(int32_t parameter, void* gradient);
  double grad_norm(std::span<void* const> gradients, double grad_scale);
  void synchronize();
  void follow(void* stream);

  StateTensor export_state(const std::string& name);
  void import_state(std::span<const StateTensor> tensors);
  void restored();
  void save(const std::string& directory);
  void load(const std::string& directory);

  void move(int32_t parameter, void* weight, void* extra);
  void move_state(int32_t parameter, const StateMemory& state);
  void reconnect(Communicator& communicator);

  Problem problem_;
  OptimizerOptions options_;  // with the hyperparameters that the caller changes between steps
  Plan plan_;
  std::unique_ptr<kernels::Kernels> kernels_;  // allocates the memory of the rest
  std::optional<engine::State> state_;
  engine::StepTimer timer_;

 private:
  void build();
  void connect(Communicator& communicator);
  void require_no_step() const;
  void check_number(int32_t parameter) const;
  // The next step, by the hyperparameters as they are now.
  engine::StepRequest request(std::span<void* const> gradients, const StepOptions& options) const;

  const int32_t rank_;
  const int32_t ranks_;
  std::vector<ParameterMemory> memory_;
  std::optional<plan::Catalog> catalog_;
  std::optional<engine::Holdings> holdings_;
  std::optional<engine::Programs> programs_;
  std::optional<engine::RowScalings> row_scalings_;
  std::optional<engine::HostBridge> bridge_;  // on a device whose communicator reaches host memory only
  engine::Link link_;
  engine::OptimizerStatus status_;
  std::optional<engine::StepContext> context_;  // refers to all of these

 public:
  std::unique_ptr<engine::StepPath> path_;  // last, because it refers to the context
};

}  // namespace muster
