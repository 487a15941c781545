#include "engine/executor.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "engine/rows.h"
#include "kernels/step_scale.h"
#include "muster/error.h"

namespace muster::engine {

namespace {

// Matrices that go through the workspace together take at most this much of it for each that the kernels work on side
// by side; one always may. Two matrices of 3072 x 768 on two threads take 90 MiB.
constexpr int64_t kWorkspaceBytes = int64_t{48} << 20;

template <typename T>
T* at(T* base, int64_t elements, int64_t width) {
  using Byte = std::conditional_t<std::is_const_v<T>, const std::byte, std::byte>;
  return base == nullptr ? nullptr : static_cast<T*>(reinterpret_cast<Byte*>(base) + elements * width);
}

// A fixed number for a parameter, the same on every rank and in every layout.
uint64_t stream_of(const std::string& name) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

int64_t round_up(int64_t bytes) {
  return (bytes + AlignedBytes::kAlign - 1) / AlignedBytes::kAlign * AlignedBytes::kAlign;
}

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
      state_(state),
      recorder_(recorder),
      arena_(full.arena_bytes) {
  for (const Parameter& p : problem_.parameters) streams_.push_back(stream_of(p.name));
  const int64_t most = kWorkspaceBytes * kernels.side_by_side();
  const int64_t left = scratch_cap == 0 ? most : std::min(most, scratch_cap - arena_.size());
  // One matrix always fits, as the plan has seen to; more as far as there is room.
  int64_t bytes = 0;
  for (const WaveProgram& wave : full.waves) {
    for (const OwnedBatch& batch : wave.owned) bytes = std::max(bytes, workshop(batch.key, false, 1).total());
    for (const HomeBatch& batch : wave.home) bytes = std::max(bytes, workshop(batch.key, true, 1).total());
  }
  int64_t wanted = bytes;
  const auto grow = [&](const BatchKey& key, bool home, size_t matrices) {
    wanted = std::max(wanted, workshop(key, home, static_cast<int64_t>(matrices)).total());
  };
  for (const WaveProgram& wave : full.waves) {
    for (const OwnedBatch& batch : wave.owned) grow(batch.key, false, batch.matrices.size());
    for (const HomeBatch& batch : wave.home) grow(batch.key, true, batch.matrices.size());
  }
  workspace_ = AlignedBytes(std::max(bytes, std::min(wanted, left)));
}

Executor::Workshop Executor::workshop(const BatchKey& key, bool home, int64_t matrices) const {
  const kernels::MatrixShape shape{key.rows, key.columns};
  Workshop shop;
  shop.matrices = matrices;
  if (home) shop.update_bytes = round_up(key.rows * key.columns * wire_bytes_);
  if (key.normuon) shop.orthogonal_bytes = round_up(key.rows * key.columns * 4);
  shop.kernel_bytes = round_up(std::max(kernels_.orthogonalize_workspace(shape, matrices),
                                        key.normuon ? kernels_.normuon_workspace(shape, matrices) : 0));
  return shop;
}

Executor::Workshop Executor::best_workshop(const BatchKey& key, bool home, size_t matrices) const {
  auto count = static_cast<int64_t>(matrices);
  // What is left over from a multiple of it would keep all threads on one matrix, which is slower than one on each.
  const int64_t unit = kernels_.side_by_side();
  while (count > 1 && workshop(key, home, count).total() > workspace_.size()) {
    count = count >= 2 * unit ? count / 2 / unit * unit : count - 1;
  }
  return workshop(key, home, count);
}

void Executor::run(const Program& program, const StepInput& input, Communicator& communicator) {
  const Run run{program, input, communicator};
  const size_t waves = program.waves.size();
  in_flight_.clear();
  in_flight_.resize(waves);
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

void Executor::average(const Program& program, const StepInput& input, Communicator& communicator, const Visit& visit) {
  const Run run{program, input, communicator};
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

Executor::Flight Executor::exchange(const Run& run, size_t w, const std::vector<Transfer>& sends,
                                    const std::vector<Transfer>& receives, std::string_view direction) {
  std::vector<Send> out;
  std::vector<Receive> in;
  StepStats& stats = recorder_.stats;
  Flight flight;
  flight.begin_ns = now_ns();
  for (const Transfer& t : sends) {
    out.push_back({t.peer, part(run, w) + t.span.offset, t.span.bytes});
    flight.bytes += t.span.bytes;
  }
  stats.bytes_sent += flight.bytes;
  stats.messages_sent += static_cast<int64_t>(sends.size());
  for (const Transfer& t : receives) {
    in.push_back({t.peer, part(run, w) + t.span.offset, t.span.bytes});
    stats.bytes_received += t.span.bytes;
    flight.bytes += t.span.bytes;
  }
  if (flight.bytes > 0) ++stats.exchanges;
  flight.request = run.communicator.exchange(out, in, fmt::format("step {} wave {} {}", run.input.step, w, direction));
  return flight;
}

void Executor::land(Flight& flight, size_t w, Stage stage, std::string_view direction) {
  {
    const auto timed = recorder_.span(stage, static_cast<int32_t>(w));
    flight.request->wait();
  }
  if (flight.bytes > 0) {
    recorder_.exchanged(fmt::format("wave {} {}", w, direction), static_cast<int32_t>(w), flight.begin_ns,
                        flight.bytes);
  }
  flight = {};
}

// MPI moves large messages only when it is called.
void Executor::poll() {
  for (InFlight& wave : in_flight_) {
    if (wave.in.request != nullptr) wave.in.request->test();
    if (wave.out.request != nullptr) wave.out.request->test();
  }
}

void Executor::clear(const Run& run, size_t w, std::span<const Span> spans) {
  for (const Span& span : spans) std::memset(part(run, w) + span.offset, 0, static_cast<size_t>(span.bytes));
}

void Executor::copy(const Run& run, size_t w, std::span<const CopyStep> steps) {
  for (const CopyStep& step : steps) {
    copy_rows(part(run, w) + step.to * wire_bytes_, step.to_stride * wire_bytes_,
              part(run, w) + step.from * wire_bytes_, step.from_stride * wire_bytes_, step.rows,
              step.columns * wire_bytes_);
  }
}

void Executor::start_in(const Run& run, size_t w) {
  const WaveProgram& wave = run.wave(w);
  {
    const auto timed = recorder_.span(Stage::kPack, static_cast<int32_t>(w));
    clear(run, w, wave.zero);
    pack(run, wave.pack, part(run, w));
    copy(run, w, wave.gather);
    for (const GradientStep& step : wave.gradients) {
      const int64_t width = byte_size(problem_.parameters[step.parameter].grad_dtype);
      const Block& b = step.block;
      std::byte* const staged = part(run, w) + step.staged;
      const void* const from = at(run.input.gradients[step.parameter], b.first, width);
      if (from == nullptr) {
        std::memset(staged, 0, static_cast<size_t>(b.elements() * width));
      } else {
        copy_rows(staged, b.columns * width, static_cast<const std::byte*>(from), b.first_stride * width, b.rows,
                  b.columns * width);
      }
    }
  }
  in_flight_[w].in = exchange(run, w, wave.send_in, wave.receive_in, "in");
}

// Neighbouring steps of one group and gradient dtype in one call.
void Executor::pack(const Run& run, std::span<const PackStep> steps, std::byte* base) {
  std::vector<kernels::MomentumBlock> blocks;
  for (size_t i = 0; i < steps.size(); ++i) {
    const PackStep& step = steps[i];
    const Dtype dtype = problem_.parameters[step.parameter].grad_dtype;
    const Group& g = group(step.parameter);
    blocks.push_back({step.block.rows, step.block.columns,
                      at(run.input.gradients[step.parameter], step.block.first, byte_size(dtype)),
                      step.block.first_stride, state_.momentum(step.momentum), step.block.columns,
                      base + step.block.second * wire_bytes_, step.block.second_stride});
    const bool more = i + 1 < steps.size() && &group(steps[i + 1].parameter) == &g &&
                      problem_.parameters[steps[i + 1].parameter].grad_dtype == dtype;
    if (more) continue;
    kernels_.momentum_pack(
        {dtype, momentum_, problem_.wire, g.momentum_form, g.nesterov, g.momentum, run.input.grad_scale}, blocks);
    ++recorder_.stats.kernels;
    blocks.clear();
  }
}

void Executor::compute(const Run& run, size_t w) {
  const WaveProgram& wave = run.wave(w);
  update(run, w, wave.ranges);
  poll();
  for (const HomeBatch& batch : wave.home) orthogonalize(run, w, batch);
  land(in_flight_[w].in, w, Stage::kWaitIn, "in");
  {
    const auto timed = recorder_.span(Stage::kAssemble, static_cast<int32_t>(w));
    copy(run, w, wave.assemble);
  }
  sum_replicas(run, w);
  for (const OwnerMomentumStep& step : wave.owner_momentum) {
    const auto timed = recorder_.span(Stage::kPack, static_cast<int32_t>(w));
    const Group& g = group(step.parameter);
    const kernels::MomentumBlock block{1,
                                       step.count,
                                       reinterpret_cast<float*>(part(run, w)) + step.sum,
                                       step.count,
                                       state_.momentum(step.momentum),
                                       step.count,
                                       part(run, w) + step.assembled * wire_bytes_,
                                       step.count};
    kernels_.momentum_pack(
        {Dtype::kF32, momentum_, problem_.wire, g.momentum_form, g.nesterov, g.momentum, run.input.grad_scale},
        {&block, 1});
    ++recorder_.stats.kernels;
  }
  update(run, w, wave.summed_ranges);
  for (const OwnedBatch& batch : wave.owned) orthogonalize(run, w, batch);
  apply(run, wave.apply_first, part(run, w));
}

// Sums in the order of the ranks, in f32.
void Executor::sum_replicas(const Run& run, size_t w) {
  const WaveProgram& wave = run.wave(w);
  if (wave.sum.empty()) return;
  const auto timed = recorder_.span(Stage::kAssemble, static_cast<int32_t>(w), "replicas");
  auto* const f32 = reinterpret_cast<float*>(part(run, w));
  clear(run, w, wave.sums);
  for (const SumStep& step : wave.sum) {
    const Dtype dtype = problem_.parameters[step.parameter].grad_dtype;
    const int64_t width = byte_size(dtype);
    const Block& b = step.block;
    const bool mine = step.staged < 0;
    const void* const from = mine ? at(run.input.gradients[step.parameter], b.first, width)
                                  : static_cast<const void*>(part(run, w) + step.staged);
    if (from == nullptr) continue;
    for (int64_t i = 0; i < b.rows; ++i) {
      add_row(dtype, at(from, i * (mine ? b.first_stride : b.columns), width), b.columns,
              f32 + b.second + i * b.second_stride);
    }
  }
  for (const AverageStep& step : wave.average) {
    for (int64_t i = 0; i < step.count; ++i) f32[step.sum + i] /= static_cast<float>(step.replicas);
  }
}

void Executor::orthogonalize(const Run& run, size_t w, const OwnedBatch& batch) {
  const Workshop shop = best_workshop(batch.key, false, batch.matrices.size());
  std::vector<std::byte*> matrices;
  std::vector<float*> variances;
  for (size_t i = 0; i < batch.matrices.size(); ++i) {
    const OwnedMatrix& m = batch.matrices[i];
    matrices.push_back(part(run, w) + m.assembled * wire_bytes_);
    variances.push_back(m.spare >= 0 ? reinterpret_cast<float*>(part(run, w) + m.spare)
                                     : state_.variance(std::max<int64_t>(m.variance, 0)));
    if (static_cast<int64_t>(matrices.size()) < shop.matrices && i + 1 < batch.matrices.size()) continue;
    polish(static_cast<int32_t>(w), batch.key, shop, matrices, variances);
    matrices.clear();
    variances.clear();
  }
}

void Executor::orthogonalize(const Run& run, size_t w, const HomeBatch& batch) {
  const Workshop shop = best_workshop(batch.key, true, batch.matrices.size());
  const auto wave = static_cast<int32_t>(w);
  for (size_t begin = 0; begin < batch.matrices.size(); begin += static_cast<size_t>(shop.matrices)) {
    const size_t count = std::min(static_cast<size_t>(shop.matrices), batch.matrices.size() - begin);
    std::vector<std::byte*> matrices;
    std::vector<float*> variances;
    {
      const auto timed = recorder_.span(Stage::kPack, wave);
      for (size_t i = 0; i < count; ++i) {
        const HomeMatrix& m = batch.matrices[begin + i];
        matrices.push_back(workspace_.data() + static_cast<int64_t>(i) * shop.update_bytes);
        variances.push_back(state_.variance(std::max<int64_t>(m.variance, 0)));
        pack(run, m.pack, matrices[i]);
      }
    }
    polish(wave, batch.key, shop, matrices, variances);
    for (size_t i = 0; i < count; ++i) apply(run, batch.matrices[begin + i].apply, matrices[i]);
  }
}

void Executor::polish(int32_t w, const BatchKey& key, const Workshop& shop, std::span<std::byte* const> matrices,
                      std::span<float* const> variances) {
  const Group& g = groups_[key.group];
  const kernels::MatrixShape shape{key.rows, key.columns};
  std::byte* const orthogonal = workspace_.data() + shop.matrices * shop.update_bytes;
  const kernels::Workspace workspace{orthogonal + shop.matrices * shop.orthogonal_bytes, shop.kernel_bytes};
  std::vector<kernels::MatrixPair> pairs;
  std::vector<kernels::NorMuonMatrix> scaled;
  for (size_t i = 0; i < matrices.size(); ++i) {
    std::byte* const o = orthogonal + static_cast<int64_t>(i) * shop.orthogonal_bytes;
    pairs.push_back({matrices[i], key.normuon ? o : matrices[i]});
    if (key.normuon) scaled.push_back({reinterpret_cast<const float*>(o), variances[i], matrices[i]});
  }
  const auto detail = [&] {
    return recorder_.tracing() ? fmt::format("{} x {}x{}", matrices.size(), key.rows, key.columns) : std::string();
  };
  {
    const auto timed = recorder_.span(Stage::kOrthogonalize, w, detail());
    kernels_.orthogonalize({g.coefficients, 0, problem_.wire, key.normuon ? Dtype::kF32 : problem_.wire}, shape, pairs,
                           workspace);
    ++recorder_.stats.kernels;
  }
  if (key.normuon) {
    const auto timed = recorder_.span(Stage::kNormalize, w, detail());
    const auto axis = key.norm_axis == NormAxis::kRows ? kernels::LineAxis::kRows : kernels::LineAxis::kColumns;
    kernels_.normuon({axis, g.beta2, g.eps, problem_.wire}, shape, scaled, workspace);
    ++recorder_.stats.kernels;
  }
  poll();
}

kernels::WeightBlock Executor::weight(int32_t parameter, int64_t first, int64_t stride, int64_t index,
                                      int64_t index_stride) const {
  const ParameterMemory& m = memory_[parameter];
  return {at(m.weight, first, weight_bytes(m.form)),
          at(m.extra, first, extra_bytes(m.form)),
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

template <typename Change>
void Executor::watch(const Run& run, int32_t parameter, const Block& block, bool counts, Change change) {
  if (run.input.changes == nullptr || !counts) {
    change();
    return;
  }
  std::vector<float> before;
  std::vector<float> after;
  read_weights(memory_[parameter], block, before);
  change();
  read_weights(memory_[parameter], block, after);
  for (size_t i = 0; i < after.size(); ++i) after[i] -= before[i];
  (*run.input.changes)[parameter].add(after.data(), 1, block.elements(), block.elements());
}

// Neighbouring steps that differ in nothing a kernel takes as an option, in one call.
void Executor::update(const Run& run, size_t w, std::span<const RangeStep> steps) {
  if (steps.empty()) return;
  const auto timed = recorder_.span(Stage::kElementwise, static_cast<int32_t>(w));
  const kernels::Rounding rounding{static_cast<uint64_t>(state_.seed), static_cast<uint64_t>(run.input.step)};
  const auto gradient_dtype = [&](const RangeStep& step) {
    return step.sum >= 0 ? Dtype::kF32 : problem_.parameters[step.parameter].grad_dtype;
  };
  const auto alike = [&](const RangeStep& a, const RangeStep& b) {
    return group_of_[a.parameter] == group_of_[b.parameter] && gradient_dtype(a) == gradient_dtype(b) &&
           memory_[a.parameter].form == memory_[b.parameter].form &&
           problem_.parameters[a.parameter].algorithm == problem_.parameters[b.parameter].algorithm &&
           state_.updates[a.parameter] == state_.updates[b.parameter] && run.input.changes == nullptr;
  };
  std::vector<kernels::ElementRange> ranges;
  for (size_t i = 0; i < steps.size(); ++i) {
    const RangeStep& step = steps[i];
    const Parameter& p = problem_.parameters[step.parameter];
    const Group& g = group(step.parameter);
    const double lr = g.lr * p.multiplier;
    const Dtype dtype = gradient_dtype(step);
    const void* const grad = step.sum >= 0 ? part(run, w) + step.sum * 4
                                           : at(run.input.gradients[step.parameter], step.first, byte_size(dtype));
    ranges.push_back({step.count, grad, state_.first_moment(step.moments.first),
                      state_.second_moment(step.moments.second), weight(step.parameter, step.first, 0, step.index, 0),
                      lr, lr * g.weight_decay});
    if (i + 1 < steps.size() && alike(step, steps[i + 1])) continue;
    const WeightForm form = memory_[step.parameter].form;
    const Block block{1, step.count, step.first, step.count, 0, step.count, 0, 0};
    watch(run, step.parameter, block, true, [&] {
      if (p.algorithm == Algorithm::kLion) {
        kernels_.lion({dtype, form, g.decay, rounding, g.beta1, g.beta2, run.input.grad_scale}, ranges);
      } else {
        kernels_.adamw({dtype, form, g.decay, rounding, g.beta1, g.beta2, g.eps, state_.updates[step.parameter] + 1,
                        run.input.grad_scale},
                       ranges);
      }
    });
    ++recorder_.stats.kernels;
    ranges.clear();
  }
}

void Executor::apply(const Run& run, std::span<const ApplyStep> steps, const std::byte* base) {
  if (steps.empty()) return;
  const auto timed = recorder_.span(Stage::kApply);
  const kernels::Rounding rounding{static_cast<uint64_t>(state_.seed), static_cast<uint64_t>(run.input.step)};
  std::vector<kernels::ApplyBlock> blocks;
  for (size_t i = 0; i < steps.size(); ++i) {
    const ApplyStep& step = steps[i];
    const Group& g = group(step.parameter);
    const double lr = g.lr * problem_.parameters[step.parameter].multiplier;
    const Block& b = step.block;
    blocks.push_back({b.rows, b.columns, base + b.second * wire_bytes_, b.second_stride,
                      weight(step.parameter, b.first, b.first_stride, b.index, b.index_stride), lr * scale(step.matrix),
                      lr * g.weight_decay});
    const WeightForm form = memory_[step.parameter].form;
    const bool more = i + 1 < steps.size() && &group(steps[i + 1].parameter) == &g &&
                      memory_[steps[i + 1].parameter].form == form && run.input.changes == nullptr;
    if (more) continue;
    const bool counts = catalog_.class_at(step.matrix).weights_back || state_.stands_for(step.parameter);
    watch(run, step.parameter, b, counts, [&] { kernels_.apply({problem_.wire, form, g.decay, rounding}, blocks); });
    ++recorder_.stats.kernels;
    blocks.clear();
  }
}

void Executor::start_out(const Run& run, size_t w) {
  const WaveProgram& wave = run.wave(w);
  {
    const auto timed = recorder_.span(Stage::kStage, static_cast<int32_t>(w));
    clear(run, w, wave.zero_out);
    copy(run, w, wave.stage_out);
    for (const WeightStep& step : wave.weights_out) {
      const int64_t width = weight_bytes(memory_[step.parameter].form);
      const Block& b = step.block;
      const void* const from = at(memory_[step.parameter].weight, b.first, width);
      copy_rows(part(run, w) + step.staged, b.columns * width, static_cast<const std::byte*>(from),
                b.first_stride * width, b.rows, b.columns * width);
    }
  }
  in_flight_[w].out = exchange(run, w, wave.send_out, wave.receive_out, "out");
}

void Executor::finish(const Run& run, size_t w) {
  const WaveProgram& wave = run.wave(w);
  land(in_flight_[w].out, w, Stage::kWaitOut, "out");
  apply(run, wave.apply, part(run, w));
  if (wave.weights_in.empty()) return;
  const auto timed = recorder_.span(Stage::kApply, static_cast<int32_t>(w), "weights");
  for (const WeightStep& step : wave.weights_in) {
    const int64_t width = weight_bytes(memory_[step.parameter].form);
    const Block& b = step.block;
    void* const to = at(memory_[step.parameter].weight, b.first, width);
    copy_rows(static_cast<std::byte*>(to), b.first_stride * width, part(run, w) + step.staged, b.columns * width,
              b.rows, b.columns * width);
  }
}

}  // namespace muster::engine
