// Carries out programs: momentum, exchange in, orthogonalization, NorMuon, exchange out, apply, wave by wave, and AdamW
// and Lion beside them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/program/program.h"
#include "engine/state/device_buffer.h"
#include "engine/state/state.h"
#include "engine/step/parameter_stats.h"
#include "engine/step/recorder.h"
#include "kernels/async_device.h"
#include "kernels/kernels.h"
#include "muster/communicator.h"

namespace muster::engine {

using Gradients = std::span<void* const>;

// What a step is given beside the program.
struct StepInput {
  Gradients gradients;
  double grad_scale = 1;  // clipping included
  int64_t step = 1;
  // On a device that decides by itself: a word a parameter, 0 where it sits out, and what to multiply gradients with.
  const int32_t* active = nullptr;
  const double* clip = nullptr;
  ParameterStatsCollector* stats = nullptr;  // null: not asked for
};

class Executor {
 public:
  // `full` is the program of all parameters: no other needs more scratch. All references outlive the executor.
  Executor(const plan::Catalog& catalog, std::span<const ParameterMemory> memory, const std::vector<Group>& groups,
           std::span<const int32_t> group_of, Dtype momentum, int64_t scratch_cap, kernels::Kernels& kernels,
           State& state, Recorder& recorder, const Program& full);

  // What ranks exchange with: memory of the host, or of a device.
  struct Link {
    Communicator* host = nullptr;
    StreamCommunicator* stream = nullptr;
  };

  // After start().
  void run(const Program& program, const StepInput& input, const Link& link);
  // All that run() goes by but the rates of groups, which are lent to the device first: with the same inputs, its calls
  // are the same.
  std::vector<int64_t> inputs(const Program& program, const StepInput& input);
  // Where run() was not called, because it would have made the same calls again.
  void count_traffic(const Program& program);

  // The same in parts, each wave in this order, for who starts waves one by one. compute() and finish() wait for what
  // arrives; arrived() and returned() say whether they would have to.
  struct Run {
    const Program& program;
    const StepInput& input;
    const Link& link;
    const WaveProgram& wave(size_t w) const { return program.waves[w]; }
  };
  void start(const Program& program);
  void start_in(const Run& run, size_t w);
  bool arrived(size_t w) const { return landed(in_flight_[w].in); }
  void compute(const Run& run, size_t w);
  void start_out(const Run& run, size_t w);
  bool returned(size_t w) const { return landed(in_flight_[w].out); }
  void finish(const Run& run, size_t w);
  void poll();  // MPI moves large messages only when it is called

  // Averages the gradients of replicas without using them: calls back with every sum at its owner.
  using Visit = std::function<void(int32_t parameter, const float* average, int64_t count)>;
  void average(const Program& program, const StepInput& input, const Link& link, const Visit& visit);

  // Drops whatever is under way.
  void abandon() { in_flight_.clear(); }

  int64_t seed() const { return state_.seed; }  // of stochastic rounding
  int64_t scratch_bytes() const { return arena_.size() + workspace_.size(); }

 private:
  struct Flight {
    std::unique_ptr<Request> request;
    int mark = -1;  // of the device's stream
    int64_t begin_ns = 0;
    int64_t bytes = 0;
  };
  struct InFlight {
    Flight in;
    Flight out;
  };
  // How many matrices go through the workspace at once, and how it is divided among them.
  struct Workshop {
    int64_t matrices = 1;
    int64_t update_bytes = 0;  // of one matrix at home, in wire dtype
    int64_t kernel_bytes = 0;  // of all
    int64_t total() const { return matrices * update_bytes + kernel_bytes; }
  };
  // A step, and where the update is that it writes or reads.
  template <typename Step>
  struct Placed {
    const Step* step;
    std::byte* base;
  };

  kernels::OrthogonalizeOptions orthogonalize_options(const BatchKey& key) const;
  Workshop workshop(const BatchKey& key, bool home, int64_t matrices) const;
  // The most that fit in one lane's part of the workspace and are worth it.
  Workshop best_workshop(const BatchKey& key, bool home, size_t matrices) const;
  // Calls work(first, count, shop, lane's part of the workspace) for batches of that size, on all lanes in turn; on one
  // lane where statistics are collected, which share memory.
  struct LanedBatch {
    const BatchKey& key;
    bool home = false;
    size_t matrices = 0;
  };
  template <typename Work>
  void in_lanes(const Run& run, const LanedBatch& batch, Work work);

  void sum_replicas(const Run& run, size_t w);
  void momentum_of_averages(const Run& run, size_t w);
  void orthogonalize(const Run& run, size_t w, const OwnedBatch& batch);
  void orthogonalize(const Run& run, size_t w, const HomeBatch& batch);
  // One batch that fits: matrices in wire dtype, in place.
  void orthogonalize(size_t w, const BatchKey& key, std::span<const kernels::UpdateMatrix> matrices,
                     const kernels::Workspace& workspace);
  // Both at once, for steps that may_join.
  void orthogonalize_and_apply(const Run& run, size_t w, const BatchKey& key,
                               std::span<const kernels::UpdateMatrix> matrices, const kernels::Workspace& workspace,
                               std::span<const Placed<ApplyStep>> steps);
  bool may_join(const Run& run, std::span<const Placed<ApplyStep>> steps) const;
  Recorder::Span orthogonalizing(size_t w, const BatchKey& key, size_t matrices);
  void pack(const Run& run, std::span<const Placed<PackStep>> steps);
  void apply(const Run& run, std::span<const Placed<ApplyStep>> steps);
  template <typename Step>
  static std::vector<Placed<Step>> placed(std::span<const Step> steps, std::byte* base);
  void update(const Run& run, size_t w, std::span<const RangeStep> steps);
  kernels::ElementRange range(const Run& run, size_t w, const RangeStep& step);
  Dtype gradient_dtype(const RangeStep& step) const;
  // AdamW or Lion, by the group of `step`, on ranges that are alike.
  void change(const Run& run, const RangeStep& step, std::span<const kernels::ElementRange> ranges);
  // The same updates piece by piece, for statistics.
  void apply_watched(const Run& run, std::span<const Placed<ApplyStep>> steps);
  void change_watched(const Run& run, const RangeStep& step, const kernels::ElementRange& range);
  void copy(const Run& run, size_t w, std::span<const CopyStep> steps);
  // NorMuon's statistics, between where this rank keeps them and the wave's part, or within that.
  enum class Lines : uint8_t { kToPart, kFromPart };
  void copy_lines(const Run& run, size_t w, std::span<const LineStep> steps, Lines direction);
  void copy_lines(const Run& run, size_t w, std::span<const CopyStep> steps);
  void copy_weights(const Run& run, size_t w, std::span<const WeightStep> steps, bool out);
  void clear(const Run& run, size_t w, std::span<const ByteRange> ranges);
  Flight exchange(const Run& run, size_t w, const std::vector<StagedMessage>& sends,
                  const std::vector<StagedMessage>& receives, std::string_view direction);
  int64_t count_traffic(std::span<const StagedMessage> sends, std::span<const StagedMessage> receives);
  void enqueue(const Run& run, size_t w, std::span<const Send> sends, std::span<const Receive> receives,
               std::string_view direction, Flight& flight);
  static std::string label_of(size_t w, std::string_view direction);
  void land(Flight& flight, size_t w, Stage stage, std::string_view direction);
  static bool landed(const Flight& flight) { return flight.request == nullptr || flight.request->test(); }

  std::byte* part(const Run& run, size_t w) { return arena_.data() + run.program.wave_offsets[w]; }
  static const int32_t* active(const Run& run, int32_t parameter) {
    return run.input.active == nullptr ? nullptr : run.input.active + parameter;
  }
  static double* gram_error(const Run& run, int32_t matrix) {
    return run.input.stats == nullptr ? nullptr : run.input.stats->gram_error(matrix);
  }
  const Group& group(int32_t parameter) const { return groups_[group_of_[parameter]]; }
  const kernels::Rates* rates(int32_t parameter) { return lend_rates() + group_of_[parameter]; }
  const kernels::Rates* lend_rates();
  kernels::WeightBlock weight(int32_t parameter, int64_t first, int64_t stride, int64_t index,
                              int64_t index_stride) const;
  double scale(int32_t matrix) const;
  kernels::Rounding rounding(const StepInput& input) const;
  kernels::ApplyOptions apply_options(const Run& run, int32_t parameter);
  kernels::ApplyBlock apply_block(const Run& run, const Placed<ApplyStep>& placed) const;
  // Weights of both can be changed in one call.
  bool same_call(int32_t parameter, int32_t other) const {
    return &group(parameter) == &group(other) && memory_[parameter].form == memory_[other].form;
  }
  const plan::Catalog& catalog_;
  const Problem& problem_;
  const std::span<const ParameterMemory> memory_;
  const std::vector<Group>& groups_;
  const std::span<const int32_t> group_of_;
  const Dtype momentum_;
  const int64_t wire_bytes_;
  kernels::Kernels& kernels_;
  kernels::AsyncDevice* const stream_;
  State& state_;
  Recorder& recorder_;
  std::vector<uint64_t> streams_;  // of stochastic rounding, a parameter
  bool stochastic_ = false;        // some weight is rounded so

  DeviceBuffer arena_;
  DeviceBuffer workspace_;
  int lanes_ = 1;                               // that the workspace has room for
  int lane_ = 0;                                // the next to be used
  std::vector<kernels::Rates> rates_;           // of groups
  const kernels::Rates* lent_rates_ = nullptr;  // on the device, in this step
  std::vector<InFlight> in_flight_;
};

}  // namespace muster::engine
