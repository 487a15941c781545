// Runs a plan: momentum, exchange in, orthogonalization, NorMuon, exchange out, apply, wave by wave, and AdamW and Lion
// beside them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/program.h"
#include "kernels/kernels.h"
#include "kernels/step_scale.h"
#include "muster/communicator.h"
#include "muster/plan.h"

namespace muster::engine {

// This rank's shard of a parameter, contiguous in the order of its local storage. Null where it holds nothing.
struct ParameterMemory {
  void* weight = nullptr;
  void* extra = nullptr;  // master or mantissa, as the form says
  WeightForm form = WeightForm::kF32;
};

// All of these may change between steps.
struct Hyperparameters {
  double lr = 0.02;
  double weight_decay = 0;
  double mu = 0.95;  // Muon's momentum
  bool nesterov = true;
  double beta1 = 0.9;   // AdamW, Lion
  double beta2 = 0.95;  // AdamW, Lion, NorMuon's variances
  double eps = 1e-8;
  Decay decay = Decay::kPlain;
};

struct OptimizerOptions {
  PlanOptions plan;
  MomentumForm momentum_form = MomentumForm::kEma;
  Dtype momentum = Dtype::kF32;
  std::string coefficients = "polar_express";
  StepScale scale = StepScale::kJordan;
  uint64_t seed = 0;  // of stochastic rounding
};

class Optimizer {
 public:
  // One for each rank of the communicator; all ranks construct theirs alike, at the same time: they compare plans.
  // `group_of` says which of `groups` hyperparameters a parameter follows. Communicator, kernels and memory outlive the
  // optimizer.
  Optimizer(Problem problem, const OptimizerOptions& options, Communicator& communicator, kernels::Kernels& kernels,
            std::vector<ParameterMemory> memory, std::vector<int32_t> group_of, int32_t groups);

  Hyperparameters& group(int32_t index) { return groups_[index]; }
  const Plan& plan() const { return plan_; }

  // gradients[p] is this rank's shard of parameter p's gradient, laid out as the weights are. Every rank calls it.
  // After a CommError some weights have been updated and some not: every later call throws, naming the step that broke
  // off.
  void step(std::span<const void* const> gradients);

 private:
  void agree();
  void run_waves(std::span<const void* const> gradients);

  struct InFlight {
    std::unique_ptr<Request> in;
    std::unique_ptr<Request> out;
  };

  void start_in(size_t w, std::span<const void* const> gradients);
  void compute(size_t w, std::span<const void* const> gradients);
  void average(size_t w, std::span<const void* const> gradients);
  void orthogonalize(size_t w, const OwnedBatch& batch);
  void update(const RangeStep& step, size_t w, std::span<const void* const> gradients);
  void apply(const std::vector<ApplyStep>& steps, size_t w);
  void start_out(size_t w);
  void finish(size_t w);
  void copy(size_t w, std::span<const CopyStep> steps);
  std::byte* part(size_t w) { return arena_.data() + program_.wave_offsets[w]; }
  std::unique_ptr<Request> exchange(size_t w, const std::vector<Transfer>& sends, const std::vector<Transfer>& receives,
                                    std::string_view direction);
  kernels::WeightBlock weight(int32_t parameter, int64_t first, int64_t stride, int64_t index,
                              int64_t index_stride) const;

  Problem problem_;
  OptimizerOptions options_;
  Communicator& communicator_;
  kernels::Kernels& kernels_;
  std::vector<ParameterMemory> memory_;
  std::vector<int32_t> group_of_;
  std::vector<Hyperparameters> groups_;
  plan::Catalog catalog_;
  Plan plan_;
  Program program_;
  Coefficients coefficients_;
  std::vector<double> scale_;  // a matrix
  int64_t step_ = 0;
  std::string broken_;  // why no further step is possible

  std::vector<std::byte> arena_;
  std::vector<std::byte> momentum_;
  std::vector<float> variance_;
  std::vector<float> first_moment_;
  std::vector<float> second_moment_;
  std::vector<float> orthogonal_;     // of the batch at hand
  std::vector<std::byte> workspace_;  // the kernels'
  std::vector<InFlight> in_flight_;
};

}  // namespace muster::engine
