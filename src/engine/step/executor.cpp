#include "engine/step/executor.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "base/alignment.h"
#include "base/offset_pointer.h"
#include "kernels/step_scale.h"
#include "muster/error.h"

namespace muster::engine {

namespace {

// A fixed number for a parameter, the same on every rank and in every layout.
uint64_t stream_of(const std::string& name) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

int64_t round_up(int64_t bytes) { return base::round_up(bytes, DeviceBuffer::kAlign); }

}  // namespace

Executor::Executor(const plan::Catalog& catalog, std::span<const ParameterMemory> memory,
                   const std::vector<Group>& groups, std::span<const int32_t> group_of, Dtype momentum,
                   int64_t scratch_cap, kernels::Kernels& kernels, State& state, Recorder& recorder,
                   const Program& full)
    : catalog_(catalog),
      problem_(catalog.problem()),
      memory_(memory),
      groups_(groups),
      group_of_(group_of),
      momentum_(momentum),
      wire_bytes_(byte_size(problem_.wire)),
      kernels_(kernels),
      stream_(kernels.stream()),
      state_(state),
      recorder_(recorder),
      arena_(kernels, full.arena_bytes) {
  for (const Parameter& p : problem_.parameters) streams_.push_back(stream_of(p.name));
  for (const ParameterMemory& m : memory) stochastic_ = stochastic_ || m.form == WeightForm::kBf16Stochastic;
  const int64_t most = kernels.largest_workspace();
  const int64_t left = scratch_cap == 0 ? most : std::min(most, scratch_cap - arena_.size());
  // One matrix always fits, as the plan has seen to; more, on more lanes, as far as there is room.
  int64_t one = 0;
  int64_t wanted = 0;
  const auto look_at = [&](const BatchKey& key, bool home, size_t matrices) {
    const int64_t good = std::min(static_cast<int64_t>(matrices), kernels.best_batch_size({key.rows, key.columns}));
    one = std::max(one, workshop(key, home, 1).total());
    wanted = std::max(wanted, kernels.lanes() * workshop(key, home, good).total());
  };
  for (const WaveProgram& wave : full.waves) {
    for (const OwnedBatch& batch : wave.owned) look_at(batch.key, false, batch.matrices.size());
    for (const HomeBatch& batch : wave.home) look_at(batch.key, true, batch.matrices.size());
  }
  const int64_t bytes = std::max(one, std::min(wanted, left));
  lanes_ = one == 0 ? 1 : static_cast<int>(std::clamp<int64_t>(bytes / one, 1, kernels.lanes()));
  workspace_ = {kernels, bytes};
}

kernels::OrthogonalizeOptions Executor::orthogonalize_options(const BatchKey& key) const {
  const Group& g = groups_[key.group];
  kernels::OrthogonalizeOptions options{g.coefficients, problem_.wire, {}};
  if (key.normuon) {
    const auto axis = key.norm_axis == NormAxis::kRows ? kernels::LineAxis::kRows : kernels::LineAxis::kColumns;
    options.normuon = {axis, g.beta2, g.eps};
  }
  return options;
}

Executor::Workshop Executor::workshop(const BatchKey& key, bool home, int64_t matrices) const {
  const kernels::MatrixShape shape{key.rows, key.columns};
  Workshop shop;
  shop.matrices = matrices;
  if (home) shop.update_bytes = round_up(key.rows * key.columns * wire_bytes_);
  shop.kernel_bytes = round_up(kernels_.orthogonalize_workspace(shape, matrices, orthogonalize_options(key)));
  return shop;
}

Executor::Workshop Executor::best_workshop(const BatchKey& key, bool home, size_t matrices) const {
  const auto most = std::min(static_cast<int64_t>(matrices), kernels_.best_batch_size({key.rows, key.columns}));
  const auto fits = [&](int64_t count) { return workshop(key, home, count).total() <= workspace_.size() / lanes_; };
  int64_t count = 1;
  for (int64_t high = most; count < high;) {
    const int64_t middle = (count + high + 1) / 2;
    if (fits(middle)) {
      count = middle;
    } else {
      high = middle - 1;
    }
  }
  // What is left over from a multiple of it would keep all threads on one matrix, which is slower than one on each.
  const int64_t unit = kernels_.concurrent_matrices();
  if (count < most && count > unit) count = count / unit * unit;
  return workshop(key, home, count);
}

template <typename Work>
void Executor::in_lanes(const Run& run, const LanedBatch& batch, Work work) {
  const Workshop shop = best_workshop(batch.key, batch.home, batch.matrices);
  const int64_t room = workspace_.size() / lanes_ / DeviceBuffer::kAlign * DeviceBuffer::kAlign;
  const bool laned = lanes_ > 1 && run.input.stats == nullptr;
  for (size_t first = 0; first < batch.matrices; first += static_cast<size_t>(shop.matrices)) {
    const size_t count = std::min(static_cast<size_t>(shop.matrices), batch.matrices - first);
    if (laned) kernels_.lane(lane_);
    work(first, count, shop, workspace_.data() + lane_ * room);
    if (laned) lane_ = (lane_ + 1) % lanes_;
  }
}

void Executor::start(const Program& program) {
  in_flight_.clear();
  in_flight_.resize(program.waves.size());
  lane_ = 0;
  lent_rates_ = nullptr;
}

void Executor::run(const Program& program, const StepInput& input, const Link& link) {
  const Run run{program, input, link};
  const size_t waves = program.waves.size();
  if (waves == 0) return;
  // While wave w computes, w + 1 arrives and w - 1 leaves.
  start_in(run, 0);
  for (size_t w = 0; w < waves; ++w) {
    if (w + 1 < waves) start_in(run, w + 1);
    compute(run, w);
    start_out(run, w);
    if (w > 0) finish(run, w - 1);
  }
  finish(run, waves - 1);
}

void Executor::average(const Program& program, const StepInput& input, const Link& link, const Visit& visit) {
  const Run run{program, input, link};
  in_flight_.clear();
  in_flight_.resize(program.waves.size());
  for (size_t w = 0; w < program.waves.size(); ++w) {
    start_in(run, w);
    land(in_flight_[w].in, w, Stage::kWaitIn, "in");
    sum_replicas(run, w);
    const auto* const sums = reinterpret_cast<const float*>(part(run, w));
    for (const OwnerMomentumStep& step : run.wave(w).owner_momentum) visit(step.parameter, sums + step.sum, step.count);
    for (const RangeStep& step : run.wave(w).summed_ranges) visit(step.parameter, sums + step.sum, step.count);
  }
  in_flight_.clear();
}

void Executor::start_in(const Run& run, size_t w) {
  const WaveProgram& wave = run.wave(w);
  {
    const auto timed = recorder_.span(Stage::kPack, static_cast<int32_t>(w));
    clear(run, w, wave.padding.clear_in);
    pack(run, placed<PackStep>(wave.pack, part(run, w)));
    copy(run, w, wave.gather);
    copy_lines(run, w, wave.lines_in, Lines::kToPart);
    for (const int64_t width : {2, 4}) {
      std::vector<kernels::CopyBlock> blocks;
      for (const GradientStep& step : wave.gradients) {
        if (byte_size(problem_.parameters[step.parameter].grad_dtype) != width) continue;
        const StridedBlock& b = step.block;
        blocks.push_back({b.rows, b.columns, base::offset_by(run.input.gradients[step.parameter], b.first, width),
                          b.first_stride, part(run, w) + step.staged, b.columns});
      }
      if (!blocks.empty()) kernels_.copy(width, blocks);
    }
  }
  in_flight_[w].in = exchange(run, w, wave.send_in, wave.receive_in, "in");
}

template <typename Step>
std::vector<Executor::Placed<Step>> Executor::placed(std::span<const Step> steps, std::byte* base) {
  std::vector<Placed<Step>> out;
  out.reserve(steps.size());
  for (const Step& step : steps) out.push_back({&step, base});
  return out;
}

// Neighbouring steps of one group and gradient dtype in one call.
void Executor::pack(const Run& run, std::span<const Placed<PackStep>> steps) {
  std::vector<kernels::MomentumBlock> blocks;
  blocks.reserve(steps.size());
  for (size_t i = 0; i < steps.size(); ++i) {
    const auto& [step, base] = steps[i];
    const Dtype dtype = problem_.parameters[step->parameter].grad_dtype;
    const Group& g = group(step->parameter);
    const State::MomentumRows momentum = state_.momentum(step->parameter, step->block, step->momentum);
    const bool travels = step->block.second != PackStep::kNowhere;
    blocks.push_back({step->block.rows, step->block.columns,
                      base::offset_by(run.input.gradients[step->parameter], step->block.first, byte_size(dtype)),
                      step->block.first_stride, momentum.data, momentum.stride,
                      travels ? base + step->block.second * wire_bytes_ : nullptr, step->block.second_stride,
                      active(run, step->parameter)});
    if (i + 1 < steps.size()) {
      const int32_t next = steps[i + 1].step->parameter;
      if (&group(next) == &g && problem_.parameters[next].grad_dtype == dtype) continue;
    }
    kernels_.momentum_pack({dtype, momentum_, problem_.wire, g.momentum_form, g.nesterov, run.input.grad_scale,
                            run.input.clip, rates(step->parameter)},
                           blocks);
    ++recorder_.stats.kernels;
    blocks.clear();
  }
}

void Executor::compute(const Run& run, size_t w) {
  const WaveProgram& wave = run.wave(w);
  lend_rates();  // before there are lanes, which do not wait for each other
  update(run, w, wave.ranges);
  poll();
  for (const HomeBatch& batch : wave.home) orthogonalize(run, w, batch);
  kernels_.join_lanes();
  land(in_flight_[w].in, w, Stage::kWaitIn, "in");
  {
    const auto timed = recorder_.span(Stage::kAssemble, static_cast<int32_t>(w));
    copy(run, w, wave.assemble);
    copy_lines(run, w, wave.assemble_lines);
  }
  sum_replicas(run, w);
  momentum_of_averages(run, w);
  update(run, w, wave.summed_ranges);
  for (const OwnedBatch& batch : wave.owned) orthogonalize(run, w, batch);
  kernels_.join_lanes();
  apply(run, placed<ApplyStep>(wave.apply_first, part(run, w)));
}

void Executor::momentum_of_averages(const Run& run, size_t w) {
  const std::vector<OwnerMomentumStep>& steps = run.wave(w).owner_momentum;
  if (steps.empty()) return;
  const auto timed = recorder_.span(Stage::kPack, static_cast<int32_t>(w));
  std::vector<kernels::MomentumBlock> blocks;
  for (size_t i = 0; i < steps.size(); ++i) {
    const OwnerMomentumStep& step = steps[i];
    const Group& g = group(step.parameter);
    blocks.push_back({1, step.count, reinterpret_cast<float*>(part(run, w)) + step.sum, step.count,
                      state_.owner_momentum(step.momentum), step.count, part(run, w) + step.assembled * wire_bytes_,
                      step.count, active(run, step.parameter)});
    if (i + 1 < steps.size() && &group(steps[i + 1].parameter) == &g) continue;
    kernels_.momentum_pack({Dtype::kF32, momentum_, problem_.wire, g.momentum_form, g.nesterov, run.input.grad_scale,
                            run.input.clip, rates(step.parameter)},
                           blocks);
    ++recorder_.stats.kernels;
    blocks.clear();
  }
}

void Executor::orthogonalize(const Run& run, size_t w, const OwnedBatch& batch) {
  in_lanes(run, {batch.key, false, batch.matrices.size()},
           [&](size_t first, size_t count, const Workshop& shop, std::byte* workspace) {
             std::vector<kernels::UpdateMatrix> matrices;
             for (size_t i = first; i < first + count; ++i) {
               const OwnedMatrix& m = batch.matrices[i];
               float* const variance = m.assembled_variance >= 0
                                           ? reinterpret_cast<float*>(part(run, w) + m.assembled_variance)
                                           : state_.variance(m.parameter, m.variance);
               matrices.push_back({part(run, w) + m.assembled * wire_bytes_, variance,
                                   m.parameter == kZeroMatrix ? nullptr : active(run, m.parameter),
                                   gram_error(run, m.measured)});
             }
             orthogonalize(w, batch.key, matrices, {workspace, shop.kernel_bytes});
           });
}

void Executor::orthogonalize(const Run& run, size_t w, const HomeBatch& batch) {
  in_lanes(run, {batch.key, true, batch.matrices.size()},
           [&](size_t first, size_t count, const Workshop& shop, std::byte* workspace) {
             std::vector<kernels::UpdateMatrix> matrices;
             std::vector<Placed<PackStep>> packs;
             std::vector<Placed<ApplyStep>> applies;
             matrices.reserve(count);
             packs.reserve(count);
             applies.reserve(count);
             for (size_t i = 0; i < count; ++i) {
               const HomeMatrix& m = batch.matrices[first + i];
               std::byte* const update = workspace + static_cast<int64_t>(i) * shop.update_bytes;
               matrices.push_back({update, state_.variance(m.parameter, m.variance), active(run, m.parameter),
                                   gram_error(run, m.measured)});
               for (const PackStep& step : m.pack) packs.push_back({&step, update});
               for (const ApplyStep& step : m.apply) applies.push_back({&step, update});
             }
             {
               const auto timed = recorder_.span(Stage::kPack, static_cast<int32_t>(w));
               pack(run, packs);
             }
             const kernels::Workspace scratch{workspace + shop.matrices * shop.update_bytes, shop.kernel_bytes};
             if (may_join(run, applies)) {
               orthogonalize_and_apply(run, w, batch.key, matrices, scratch, applies);
             } else {
               orthogonalize(w, batch.key, matrices, scratch);
               apply(run, applies);
             }
           });
}

// Apply takes one call, which may be that of orthogonalize too. Where calls return when they are done they stay two,
// because the host's clock tells stages apart.
bool Executor::may_join(const Run& run, std::span<const Placed<ApplyStep>> steps) const {
  if (stream_ == nullptr || run.input.stats != nullptr || steps.empty()) return false;
  return std::all_of(steps.begin(), steps.end(), [&](const Placed<ApplyStep>& placed) {
    return same_call(placed.step->parameter, steps[0].step->parameter);
  });
}

Recorder::Span Executor::orthogonalizing(size_t w, const BatchKey& key, size_t matrices) {
  return recorder_.span(
      Stage::kOrthogonalize, static_cast<int32_t>(w),
      recorder_.tracing() ? fmt::format("{} x {}x{}", matrices, key.rows, key.columns) : std::string());
}

void Executor::orthogonalize(size_t w, const BatchKey& key, std::span<const kernels::UpdateMatrix> matrices,
                             const kernels::Workspace& workspace) {
  const auto timed = orthogonalizing(w, key, matrices.size());
  kernels_.orthogonalize({.options = orthogonalize_options(key),
                          .shape = {key.rows, key.columns},
                          .matrices = matrices,
                          .workspace = workspace});
  ++recorder_.stats.kernels;
  poll();
}

void Executor::orthogonalize_and_apply(const Run& run, size_t w, const BatchKey& key,
                                       std::span<const kernels::UpdateMatrix> matrices,
                                       const kernels::Workspace& workspace, std::span<const Placed<ApplyStep>> steps) {
  const auto timed = orthogonalizing(w, key, matrices.size());
  std::vector<kernels::ApplyBlock> blocks;
  blocks.reserve(steps.size());
  for (const Placed<ApplyStep>& step : steps) blocks.push_back(apply_block(run, step));
  kernels_.orthogonalize_and_apply({.options = orthogonalize_options(key),
                                    .shape = {key.rows, key.columns},
                                    .matrices = matrices,
                                    .workspace = workspace},
                                   apply_options(run, steps[0].step->parameter), blocks);
  ++recorder_.stats.kernels;
}

kernels::WeightBlock Executor::weight(int32_t parameter, int64_t first, int64_t stride, int64_t index,
                                      int64_t index_stride) const {
  const ParameterMemory& m = memory_[parameter];
  return {base::offset_by(m.weight, first, weight_bytes(m.form)),
          base::offset_by(m.extra, first, extra_bytes(m.form)),
          stride,
          streams_[parameter],
          index,
          index_stride};
}

double Executor::scale(int32_t matrix) const {
  const int32_t p = catalog_.parameter_of(matrix);
  const Parameter& parameter = problem_.parameters[p];
  int64_t rows = catalog_.rows(matrix);
  int64_t columns = catalog_.columns(matrix);
  if (parameter.scale_shape == ScaleShape::kParameter && parameter.shape.size() > 1) {
    const Shape& shape = parameter.shape;
    rows = parameter.matrices.flatten ? shape[0] : shape[shape.size() - 2];
    columns = parameter.matrices.flatten ? element_count(shape) / std::max<int64_t>(shape[0], 1) : shape.back();
  }
  const StepScale kind = group(p).scale;
  return parameter.output_dim == 0 ? kernels::step_scale(kind, rows, columns)
                                   : kernels::step_scale(kind, columns, rows);
}

// Neighbouring steps that differ in nothing a kernel takes as an option, in one call.
void Executor::update(const Run& run, size_t w, std::span<const RangeStep> steps) {
  if (steps.empty()) return;
  const auto timed = recorder_.span(Stage::kElementwise, static_cast<int32_t>(w));
  const auto alike = [&](const RangeStep& a, const RangeStep& b) {
    return group_of_[a.parameter] == group_of_[b.parameter] && gradient_dtype(a) == gradient_dtype(b) &&
           memory_[a.parameter].form == memory_[b.parameter].form &&
           problem_.parameters[a.parameter].algorithm == problem_.parameters[b.parameter].algorithm &&
           (stream_ != nullptr || state_.updates()[a.parameter] == state_.updates()[b.parameter]);
  };
  std::vector<kernels::ElementRange> ranges;
  for (size_t i = 0; i < steps.size(); ++i) {
    const RangeStep& step = steps[i];
    const bool counts = !state_.holders_keep(step.parameter) || state_.is_primary(step.parameter);
    if (run.input.stats != nullptr && counts) {
      change_watched(run, step, range(run, w, step));
      continue;
    }
    ranges.push_back(range(run, w, step));
    if (run.input.stats == nullptr && i + 1 < steps.size() && alike(step, steps[i + 1])) continue;
    change(run, step, ranges);
    ranges.clear();
  }
}

Dtype Executor::gradient_dtype(const RangeStep& step) const {
  return step.sum >= 0 ? Dtype::kF32 : problem_.parameters[step.parameter].grad_dtype;
}

kernels::ElementRange Executor::range(const Run& run, size_t w, const RangeStep& step) {
  const void* const grad =
      step.sum >= 0 ? part(run, w) + step.sum * 4
                    : base::offset_by(run.input.gradients[step.parameter], step.first, byte_size(gradient_dtype(step)));
  const State::MomentPointers moments = state_.moments(step.parameter, step.first, step.moments);
  return {step.count,
          grad,
          moments.first,
          moments.second,
          weight(step.parameter, step.first, 0, step.index, 0),
          problem_.parameters[step.parameter].multiplier,
          stream_ == nullptr ? nullptr : state_.updates() + step.parameter,
          active(run, step.parameter)};
}

void Executor::change(const Run& run, const RangeStep& step, std::span<const kernels::ElementRange> ranges) {
  const Group& g = group(step.parameter);
  const Dtype dtype = gradient_dtype(step);
  const WeightForm form = memory_[step.parameter].form;
  const kernels::Rounding numbers = rounding(run.input);
  if (problem_.parameters[step.parameter].algorithm == Algorithm::kLion) {
    kernels_.lion(
        {dtype, form, g.decay, numbers, g.beta1, g.beta2, run.input.grad_scale, run.input.clip, rates(step.parameter)},
        ranges);
  } else {
    const int64_t number = stream_ != nullptr ? 0 : state_.updates()[step.parameter] + 1;
    kernels_.adamw({dtype, form, g.decay, numbers, g.beta1, g.beta2, g.eps, number, run.input.grad_scale,
                    run.input.clip, rates(step.parameter)},
                   ranges);
  }
  ++recorder_.stats.kernels;
}

kernels::ApplyOptions Executor::apply_options(const Run& run, int32_t parameter) {
  return {problem_.wire, memory_[parameter].form, group(parameter).decay, rounding(run.input), rates(parameter)};
}

kernels::Rounding Executor::rounding(const StepInput& input) const {
  if (!stochastic_) return {};
  return {static_cast<uint64_t>(state_.seed), static_cast<uint64_t>(input.step)};
}

kernels::ApplyBlock Executor::apply_block(const Run& run, const Placed<ApplyStep>& placed) const {
  const auto& [step, base] = placed;
  const double multiplier = problem_.parameters[step->parameter].multiplier;
  const StridedBlock& b = step->block;
  return {b.rows,
          b.columns,
          base + b.second * wire_bytes_,
          b.second_stride,
          weight(step->parameter, b.first, b.first_stride, b.index, b.index_stride),
          scale(step->matrix),
          multiplier,
          active(run, step->parameter)};
}

void Executor::apply(const Run& run, std::span<const Placed<ApplyStep>> steps) {
  if (steps.empty()) return;
  const auto timed = recorder_.span(Stage::kApply);
  if (run.input.stats != nullptr) return apply_watched(run, steps);
  std::vector<kernels::ApplyBlock> blocks;
  for (size_t i = 0; i < steps.size(); ++i) {
    const int32_t p = steps[i].step->parameter;
    blocks.push_back(apply_block(run, steps[i]));
    if (i + 1 < steps.size() && same_call(p, steps[i + 1].step->parameter)) continue;
    kernels_.apply(apply_options(run, p), blocks);
    ++recorder_.stats.kernels;
    blocks.clear();
  }
}

void Executor::start_out(const Run& run, size_t w) {
  const WaveProgram& wave = run.wave(w);
  {
    const auto timed = recorder_.span(Stage::kStage, static_cast<int32_t>(w));
    clear(run, w, wave.padding.clear_out);
    copy(run, w, wave.stage_out);
    copy_lines(run, w, wave.stage_lines);
    copy_lines(run, w, wave.lines_out, Lines::kToPart);
    copy_weights(run, w, wave.weights_out, true);
  }
  in_flight_[w].out = exchange(run, w, wave.send_out, wave.receive_out, "out");
}

void Executor::finish(const Run& run, size_t w) {
  const WaveProgram& wave = run.wave(w);
  land(in_flight_[w].out, w, Stage::kWaitOut, "out");
  apply(run, placed<ApplyStep>(wave.apply, part(run, w)));
  copy_lines(run, w, wave.lines_back, Lines::kFromPart);
  if (wave.weights_in.empty()) return;
  const auto timed = recorder_.span(Stage::kApply, static_cast<int32_t>(w), "weights");
  copy_weights(run, w, wave.weights_in, false);
}

}  // namespace muster::engine
