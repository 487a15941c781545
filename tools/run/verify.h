// N ranks against one: the same gradients must give the same bits.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "run/workload.h"

namespace muster::run {

struct Difference {
  int32_t parameter = 0;
  int64_t element = 0;  // of the whole parameter, row-major
  int32_t rank = 0;     // who has it
  double got = 0;
  double expected = 0;
};

// One rank's part; all ranks make the same calls.
class Verifier {
 public:
  static constexpr int64_t kDeviceGradients = 3;  // steps under way on a device before one must be over

  struct Options {
    int64_t steps = 2;
    int threads = 1;
    Device device{};
  };
  // A whole parameter after the steps, in its dtype; the bytes are gone when the call returns.
  using Inspect = std::function<void(int32_t parameter, std::span<const std::byte> whole)>;

  // The workload and the communicator outlive it.
  Verifier(const Workload& workload, Communicator& communicator, const Options& options);

  // Rank 0 runs the model on one rank, on its device, and sends the result, parameter by parameter. Every rank keeps
  // its shards of it, and is shown each parameter.
  void run_one_rank(const Inspect& inspect);

  // Runs the model on all ranks; the first difference to one rank, by parameter and element, the same on every rank.
  std::optional<Difference> compare(const PlanOptions& plan, bool graph = true);

 private:
  void take_steps(const Problem& problem, int32_t rank, OptimizerOptions options, Communicator& communicator,
                  Weights& weights) const;
  std::optional<Difference> own_difference(const Weights& weights) const;
  std::optional<Difference> first_of_all(const std::optional<Difference>& own);

  const Workload& workload_;
  Communicator& communicator_;
  Options options_;
  std::unique_ptr<kernels::Kernels> kernels_;     // for the memory of the steps
  std::vector<std::vector<std::byte>> expected_;  // this rank's shards of what one rank gets
};

}  // namespace muster::run
