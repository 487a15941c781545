// Carries out the waves of a program, wave by wave: momentum, exchange in, orthogonalization, NorMuon, exchange out,
// apply; and AdamW and Lion next to them. The pipeline says in which order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/program/program.h"
#include "engine/state/device_buffer.h"
#include "engine/step/parameter_stats.h"
#include "engine/step/step_context.h"
#include "kernels/async_device.h"
#include "kernels/kernels.h"
#include "muster/communicator.h"

namespace muster::engine {

// What a step computes from.
struct StepInput {
  const Program* program = nullptr;
  Gradients gradients{};
  std::span<const Group> groups{};  // do not change while the step runs
  double grad_scale = 1;            // on the host with clipping
  int64_t number = 1;
  // On a device: one flag per parameter, 0 means it sits this step out; and what gradients are multiplied by.
  const int32_t* active = nullptr;
  const double* clip = nullptr;
  std::span<const float> row_factors{};  // empty: none
  // On a device: one flag per parameter, 1 means that it sits the step out and the step goes.
  const int32_t* sitting = nullptr;
  ParameterStatsCollector* stats = nullptr;   // null: not asked for
  NonFinite non_finite = NonFinite::kIgnore;  // in what rules return
};

class WaveExecutor {
 public:
  struct Options {
    Dtype momentum = Dtype::kF32;
    int64_t scratch_cap = 0;          // bytes; 0: none
    std::span<const Group> groups{};  // of the first step
  };
  // Allocates for the program of all parameters; no other needs more scratch. References outlive this object.
  WaveExecutor(const StepContext& context, const Options& options);

  // All calls up to the next start() are about this step. What `input` points to stays.
  void start(const StepInput& input);
  size_t waves() const { return step_.program->waves.size(); }

  // Every wave in this order. compute() and finish() wait for messages; arrived() and returned() are true if they would
  // not have to.
  void start_in(size_t w);
  bool arrived(size_t w) const { return ended(exchanges_[w].in); }
  void compute(size_t w);
  void start_out(size_t w);
  bool returned(size_t w) const { return ended(exchanges_[w].out); }
  void finish(size_t w);
  // A step that only multiplies rows of these parameters, all those of the input's program, by their factors: they sit
  // the step out.
  void scale_rows(const StepInput& input, const std::vector<bool>& parameters);
  // Counts the messages of that instead.
  void count_row_traffic(const StepInput& input, const std::vector<bool>& parameters);
  void poll();  // MPI moves large messages only when it is called

  // Everything the calls of a step depend on, except rates of groups, which are uploaded first. Equal inputs: the same
  // calls.
  std::vector<int64_t> inputs();
  // Counts the messages of a step whose calls were not made because its inputs were those of the last.
  void count_traffic();

  // Starts a step that only averages the gradients of replicas: calls visit() with every average at its owner.
  using Visit = std::function<void(int32_t parameter, const float* average, int64_t count)>;
  void average(const StepInput& input, const Visit& visit);

  // What a rule of this step threw on this rank. Rules are not called after it: their updates are zero.
  struct RuleError {
    std::exception_ptr original;  // null: none has failed
    std::string text;
  };
  const RuleError& rule_error() const { return rule_error_; }

  // Drops the exchanges under way.
  void abandon() { exchanges_.clear(); }

  int64_t scratch_bytes() const { return arena_.size() + workspace_.size(); }

 private:
  struct Exchange {
    std::unique_ptr<Request> request;  // on the host
    int event = -1;                    // on a device
    int64_t begin_ns = 0;
    int64_t bytes = 0;
  };
  struct WaveExchanges {
    Exchange in;
    Exchange out;
  };
  // How many matrices one batch has, and how its workspace is divided.
  struct BatchLayout {
    int64_t matrices = 1;
    int64_t update_bytes = 0;  // per matrix at home, in wire dtype
    int64_t kernel_bytes = 0;
    int64_t total() const { return matrices * update_bytes + kernel_bytes; }
  };
  struct BatchSet {
    const BatchKey& key;
    bool home = false;
    size_t matrices = 0;
  };
  // A step of the program, and the start of the updates that it writes or reads.
  template <typename Step>
  struct Placed {
    const Step* step;
    std::byte* updates;
  };
  template <typename Step>
  static std::vector<Placed<Step>> placed(std::span<const Step> steps, std::byte* updates);

  // wave_momentum.cpp
  void pack(std::span<const Placed<PackStep>> steps);
  void momentum_of_averages(size_t w);
  kernels::MomentumOptions momentum_options(int32_t parameter, Dtype gradient);

  // wave_exchange.cpp
  Exchange exchange(size_t w, const std::vector<StagedMessage>& sends, const std::vector<StagedMessage>& receives,
                    std::string_view direction);
  void enqueue(size_t w, std::span<const Send> sends, std::span<const Receive> receives, std::string_view direction,
               Exchange& exchange);
  void wait(Exchange& exchange, size_t w, Stage stage, std::string_view direction);
  static bool ended(const Exchange& exchange) { return exchange.request == nullptr || exchange.request->test(); }
  int64_t count_traffic(std::span<const StagedMessage> sends, std::span<const StagedMessage> receives);

  // wave_copies.cpp
  void clear(size_t w, std::span<const ByteRange> spans);
  void copy(size_t w, std::span<const CopyStep> steps);
  enum class Direction : uint8_t { kToPart, kFromPart };  // of a wave in the arena
  // NorMuon's lines, between this rank's state and the wave's part, or within the part.
  void copy_lines(size_t w, std::span<const LineStep> steps, Direction direction);
  void copy_lines(size_t w, std::span<const CopyStep> steps);
  void copy_gradients(size_t w, std::span<const GradientStep> steps);
  void copy_weights(size_t w, std::span<const WeightStep> steps, Direction direction);
  void sum_replicas(size_t w);

  // wave_orthogonalize.cpp
  void allocate_workspace(int64_t scratch_cap);
  kernels::OrthogonalizeOptions orthogonalize_options(const BatchKey& key) const;
  BatchLayout batch_layout(const BatchSet& set, int64_t matrices) const;
  // The most matrices that fit in one lane's part of the workspace and are worth it.
  BatchLayout best_batch(const BatchSet& set) const;
  // Calls work(first, count, layout, workspace) per batch, on all lanes in turn; on one lane where statistics are
  // collected, because they share memory.
  template <typename Work>
  void for_batches(const BatchSet& set, Work work);
  void orthogonalize(size_t w, const OwnedBatch& batch);
  void orthogonalize(size_t w, const HomeBatch& batch);
  // One batch: matrices in wire dtype, in place.
  void orthogonalize(size_t w, const BatchKey& key, std::span<const kernels::UpdateMatrix> matrices,
                     const kernels::Workspace& workspace);
  // Both in one call, if can_fuse().
  void orthogonalize_and_apply(size_t w, const BatchKey& key, std::span<const kernels::UpdateMatrix> matrices,
                               const kernels::Workspace& workspace, std::span<const Placed<ApplyStep>> steps);
  bool can_fuse(std::span<const Placed<ApplyStep>> steps) const;

  // wave_rule.cpp
  struct RuleMatrix {
    int32_t parameter;
    std::byte* update;  // in wire dtype, replaced in place
    float* state;
  };
  // The largest batch that is faster per matrix than a smaller one, or that the rule takes.
  int64_t best_batch_size(const BatchKey& key) const;
  int64_t kernel_workspace(const BatchKey& key, int64_t matrices) const;
  RuleMatrix rule_matrix(int32_t parameter, std::byte* update, int64_t state) {
    return {parameter, update, context_.state.rule_state(state)};
  }
  // One batch. Matrices that sit the step out are left as they are.
  void run_rule(size_t w, const BatchKey& key, std::span<const RuleMatrix> matrices,
                const kernels::Workspace& workspace);
  // Matrices whose state lies at equal distances.
  void call_rule(const BatchKey& key, std::span<const RuleMatrix> matrices, const kernels::Workspace& workspace);
  void check_result(std::span<const RuleMatrix> matrices, std::span<float> values);

  StepTimer::Scope time_orthogonalize(size_t w, const BatchKey& key, size_t matrices);
  double* gram_error(int32_t matrix) const {
    return step_.stats == nullptr ? nullptr : step_.stats->gram_error(matrix);
  }

  // wave_apply.cpp
  void apply(std::span<const Placed<ApplyStep>> steps);
  // The same bits piece by piece, for statistics.
  void apply_watched(std::span<const Placed<ApplyStep>> steps);
  kernels::ApplyOptions apply_options(int32_t parameter);
  kernels::ApplyBlock apply_block(const Placed<ApplyStep>& placed) const;
  kernels::WeightBlock weight(int32_t parameter, const StridedBlock& block) const;
  double scale(int32_t matrix) const;
  // Weights of both can be changed in one call.
  bool same_call(int32_t parameter, int32_t other) const {
    return &group(parameter) == &group(other) && context_.memory[parameter].form == context_.memory[other].form;
  }

  // wave_row_scaling.cpp
  kernels::RowFactors row_factors(int32_t parameter) const;
  // Multiplies the rows of this wave that an update would change here; on a device, of parameters that sit it out.
  void scale_rows(size_t w);

  // wave_elementwise.cpp
  void update_elements(size_t w, std::span<const RangeStep> steps);
  bool same_call(const RangeStep& step, const RangeStep& other) const;
  kernels::ElementRange element_range(size_t w, const RangeStep& step);
  Dtype gradient_dtype(const RangeStep& step) const;
  // AdamW or Lion on ranges that can be changed in one call; `step` is of one of them.
  void update_ranges(const RangeStep& step, std::span<const kernels::ElementRange> ranges);
  void update_watched(const RangeStep& step, const kernels::ElementRange& range);

  kernels::Rounding rounding() const;
  const kernels::Rates* rates();  // of all groups, where the kernels read them; uploads them once per step
  const kernels::Rates* rates(int32_t parameter) { return rates() + context_.memory[parameter].group; }

  const WaveProgram& wave(size_t w) const { return step_.program->waves[w]; }
  std::byte* part(size_t w) { return arena_.data() + step_.program->wave_offsets[w]; }
  float* part_f32(size_t w) { return reinterpret_cast<float*>(part(w)); }
  const int32_t* active(int32_t parameter) const {
    return step_.active == nullptr ? nullptr : step_.active + parameter;
  }
  const Group& group(int32_t parameter) const { return step_.groups[context_.memory[parameter].group]; }
  const Parameter& parameter(int32_t p) const { return context_.problem.parameters[p]; }
  StepTimer::Scope time(Stage stage, size_t w, std::string detail = {}) {
    return context_.timer.time(stage, static_cast<int32_t>(w), std::move(detail));
  }
  StepStats& stats() { return context_.timer.stats; }

  const StepContext& context_;
  kernels::Kernels& kernels_;
  const Dtype momentum_;
  const int64_t wire_bytes_;
  std::vector<uint64_t> rounding_streams_;  // one per parameter
  bool stochastic_ = false;                 // some weight is rounded stochastically

  StepInput step_;
  RuleError rule_error_;
  DeviceBuffer arena_;
  DeviceBuffer workspace_;
  int lanes_ = 1;                               // that the workspace has room for
  int lane_ = 0;                                // the next to be used
  std::vector<kernels::Rates> host_rates_;      // one per group
  const kernels::Rates* step_rates_ = nullptr;  // of this step; null: not uploaded
  std::vector<WaveExchanges> exchanges_;        // one per wave
};

}  // namespace muster::engine
