#include "engine/step/wave_executor.h"

#include <bit>

#include "engine/step/hyperparameters.h"

namespace muster::engine {

namespace {

// A fixed number per parameter, the same on every rank and in every layout.
uint64_t rounding_stream(const std::string& name) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

}  // namespace

WaveExecutor::WaveExecutor(const StepContext& context, const Options& options)
    : context_(context),
      kernels_(context.kernels),
      momentum_(options.momentum),
      wire_bytes_(byte_size(context.problem.wire)),
      step_{.program = &context.programs.all(), .groups = options.groups},
      arena_(context.kernels, step_.program->arena_bytes) {
  for (const Parameter& p : context.problem.parameters) rounding_streams_.push_back(rounding_stream(p.name));
  for (const ParameterMemory& m : context.memory) stochastic_ |= m.form == WeightForm::kBf16Stochastic;
  allocate_workspace(options.scratch_cap);
}

void WaveExecutor::start(const StepInput& input) {
  step_ = input;
  exchanges_.clear();
  exchanges_.resize(waves());
  lane_ = 0;
  step_rates_ = nullptr;
  rule_error_ = {};
}

template <typename Step>
std::vector<WaveExecutor::Placed<Step>> WaveExecutor::placed(std::span<const Step> steps, std::byte* updates) {
  std::vector<Placed<Step>> out;
  out.reserve(steps.size());
  for (const Step& step : steps) out.push_back({&step, updates});
  return out;
}

void WaveExecutor::start_in(size_t w) {
  {
    const auto timed = time(Stage::kPack, w);
    clear(w, wave(w).padding.clear_in);
    pack(placed<PackStep>(wave(w).pack, part(w)));
    copy(w, wave(w).gather);
    copy_lines(w, wave(w).lines_in, Direction::kToPart);
    copy_gradients(w, wave(w).gradients);
  }
  exchanges_[w].in = exchange(w, wave(w).send_in, wave(w).receive_in, "in");
}

void WaveExecutor::compute(size_t w) {
  rates();  // before there are lanes, which do not wait for each other
  if (context_.device != nullptr) scale_rows(w);
  update_elements(w, wave(w).ranges);
  poll();
  for (const HomeBatch& batch : wave(w).home) orthogonalize(w, batch);
  kernels_.join_lanes();
  wait(exchanges_[w].in, w, Stage::kWaitIn, "in");
  {
    const auto timed = time(Stage::kAssemble, w);
    copy(w, wave(w).assemble);
    copy_lines(w, wave(w).assemble_lines);
  }
  sum_replicas(w);
  momentum_of_averages(w);
  update_elements(w, wave(w).summed_ranges);
  for (const OwnedBatch& batch : wave(w).owned) orthogonalize(w, batch);
  kernels_.join_lanes();
  apply(placed<ApplyStep>(wave(w).apply_first, part(w)));
}

void WaveExecutor::start_out(size_t w) {
  {
    const auto timed = time(Stage::kStage, w);
    clear(w, wave(w).padding.clear_out);
    copy(w, wave(w).stage_out);
    copy_lines(w, wave(w).stage_lines);
    copy_lines(w, wave(w).lines_out, Direction::kToPart);
    copy_weights(w, wave(w).weights_out, Direction::kToPart);
  }
  exchanges_[w].out = exchange(w, wave(w).send_out, wave(w).receive_out, "out");
}

void WaveExecutor::finish(size_t w) {
  wait(exchanges_[w].out, w, Stage::kWaitOut, "out");
  apply(placed<ApplyStep>(wave(w).apply, part(w)));
  copy_lines(w, wave(w).lines_back, Direction::kFromPart);
  if (wave(w).weights_in.empty()) return;
  const auto timed = time(Stage::kApply, w, "weights");
  copy_weights(w, wave(w).weights_in, Direction::kFromPart);
}

void WaveExecutor::average(const StepInput& input, const Visit& visit) {
  start(input);
  for (size_t w = 0; w < waves(); ++w) {
    start_in(w);
    wait(exchanges_[w].in, w, Stage::kWaitIn, "in");
    sum_replicas(w);
    const float* const sums = part_f32(w);
    for (const OwnerMomentumStep& step : wave(w).owner_momentum) visit(step.parameter, sums + step.sum, step.count);
    for (const RangeStep& step : wave(w).summed_ranges) visit(step.parameter, sums + step.sum, step.count);
  }
  exchanges_.clear();
}

std::vector<int64_t> WaveExecutor::inputs() {
  const kernels::Rounding numbers = rounding();
  const auto address = [](const void* pointer) { return reinterpret_cast<int64_t>(pointer); };
  std::vector<int64_t> out{step_.program->number,
                           std::bit_cast<int64_t>(step_.grad_scale),
                           static_cast<int64_t>(numbers.seed),
                           static_cast<int64_t>(numbers.step),
                           address(step_.active),
                           address(step_.clip),
                           address(step_.stats),
                           address(step_.row_factors.data()),
                           address(rates())};
  out.reserve(out.size() + step_.groups.size() + 6 * context_.memory.size());
  for (const Group& g : step_.groups) out.push_back(static_cast<int64_t>(fingerprint_but_rates(g)));
  for (const void* const gradient : step_.gradients) out.push_back(address(gradient));
  for (const ParameterMemory& m : context_.memory) {
    out.insert(out.end(),
               {address(m.weight), address(m.extra), address(m.momentum), address(m.second), address(m.statistics)});
  }
  return out;
}

const kernels::Rates* WaveExecutor::rates() {
  if (step_rates_ != nullptr) return step_rates_;
  host_rates_.clear();
  for (const Group& g : step_.groups) host_rates_.push_back({g.lr, g.weight_decay, g.momentum});
  step_rates_ = context_.device == nullptr ? host_rates_.data() : context_.device->upload(host_rates_);
  return step_rates_;
}

kernels::Rounding WaveExecutor::rounding() const {
  if (!stochastic_) return {};
  return {static_cast<uint64_t>(context_.state.seed), static_cast<uint64_t>(step_.number)};
}

}  // namespace muster::engine
