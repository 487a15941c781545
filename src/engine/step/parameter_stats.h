// Statistics per parameter of one step (StepOptions::parameter_stats): the size of gradients, changes and weights, and
// how far updates are from orthogonal.
//
// They are summed where the step computes, exactly or on one rank only, so that they have the same bits in every
// layout. Nothing is allocated before the first step that asks for them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/state/device_buffer.h"
#include "engine/step/holdings.h"
#include "kernels/kernels.h"
#include "muster/communicator.h"
#include "muster/optimizer.h"
#include "plan/catalog.h"

namespace muster::engine {

class ParameterStatsCollector {
 public:
  // Larger updates are watched piece by piece. A piece needs 4 bytes per element, for the weights before the update.
  static constexpr int64_t kPieceElements = int64_t{1} << 22;

  ParameterStatsCollector(const plan::Catalog& catalog, kernels::Kernels& kernels)
      : catalog_(catalog), kernels_(kernels) {}

  // Call it before a step: allocates what is missing and clears all sums. Without it, as in a dry run, which launches
  // nothing, all pointers are null.
  void start();

  // Where the kernels write the error of a matrix (UpdateMatrix::gram_error). Null for matrix -1.
  double* gram_error(int32_t matrix) const {
    return matrix < 0 || errors_.size() == 0 ? nullptr : errors_.as<double>() + matrix;
  }

  // Calls update(), which changes the weights of one block, and adds the squares of the change to the parameter's sum.
  // The block has at most kPieceElements elements, or one row.
  struct Watched {
    int32_t parameter = 0;
    WeightForm form = WeightForm::kF32;
    kernels::ChangeBlock block{};  // watch() sets `values`
  };
  template <typename Update>
  void watch(Watched watched, const Update& update) {
    keep_weights(watched);
    update();
    add_change(watched);
  }

  // Call it after the step: adds the weights of which this rank is the first replica.
  void add_weights(const Holdings& holdings, std::span<const ParameterMemory> memory);

  // Sums over the ranks and fills in `out`, except its gradient norms. All ranks call it; it waits for the device.
  void report(Communicator& communicator, const std::string& label, std::vector<ParameterStats>& out);

 private:
  void keep_weights(Watched& watched);
  void add_change(const Watched& watched);
  int64_t* changes() const { return sums_.as<int64_t>(); }
  int64_t* weights() const;

  const plan::Catalog& catalog_;
  kernels::Kernels& kernels_;
  DeviceBuffer sums_;    // one SumOfSquares per parameter for the changes, then one for the weights
  DeviceBuffer errors_;  // one double per matrix
  DeviceBuffer kept_;    // weights before an update
};

}  // namespace muster::engine
