// Times of whole steps, of several plans in turn.
#pragma once

#include <array>
#include <functional>
#include <string>
#include <vector>

#include "run/timeline.h"
#include "run/workload.h"

namespace muster::run {

struct BenchOptions {
  int64_t warmup = 1;  // at least one
  int64_t steps = 5;   // timed, each by itself
  int64_t steady = 0;  // more of them, one behind the other without a wait in between
  int threads = 1;     // of a rank
  Device device{};
  bool graph = true;
  bool trace = false;  // keep what happened in one more step, which is not timed
  // Called on every rank before each step: a share of the whole, and which case comes next.
  std::function<void(double done, size_t next)> progress = [](double, size_t) {};
};

struct BenchResult {
  int64_t waves = 0;
  int64_t in_flight = 0;                    // waves
  int64_t setup_ns = 0;                     // to construct the optimizer: of the slowest rank, as the next three
  int64_t first_step_ns = 0;                // the first of all
  std::vector<int64_t> step_ns;             // each timed step, from when nothing is under way to when nothing is
  int64_t steady_ns = 0;                    // mean of the steady ones; 0 if there were none
  std::vector<int64_t> host_ns;             // what of it was neither kernels nor waiting, of the rank with most; on a
                                            // device, until step() had returned
  std::array<int64_t, kStages> stage_ns{};  // means over ranks and steps; on a device, the host's
  int64_t collectives = 0;                  // as the plan counts them
  int64_t messages = 0;                     // of a step, all ranks
  int64_t exchanges_max = 0;                // of the rank with most: each is one NCCL group, and one NCCL kernel
  int64_t transfers_max = 0;                // sends and receives of the rank with most: calls within those groups
  int64_t bytes_sent_max = 0;               // of a step, by the busiest rank
  int64_t kernels = 0;                      // calls in a step, of the rank with most
  int64_t scratch_bytes_max = 0;            // allocated by the rank with most
  int64_t scratch_cap = 0;                  // as Plan::scratch_cap; so is the next
  bool scratch_cap_raised = false;
  int64_t padding_bytes = 0;
  int64_t predicted_ns = 0;
  bool bitwise_equal = true;        // all weights in the end, to those of the first case
  std::vector<Timeline> timelines;  // one a rank, on rank 0, if asked for
};

int64_t median(std::vector<int64_t> values);  // the lower one of two; 0 of none

// All cases take the same steps on the same gradients, a step of each in turn, so that a machine that slows down slows
// all of them. All ranks call it, and get the same but for the timelines. Throws InvalidArgument for a plan that cannot
// be made.
std::vector<BenchResult> bench(const Workload& workload, Communicator& communicator, std::span<const PlanOptions> cases,
                               const BenchOptions& options);

}  // namespace muster::run
