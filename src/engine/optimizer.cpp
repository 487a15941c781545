#include "engine/optimizer.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>

#include <fmt/format.h>

#include "muster/error.h"
#include "plan/hash.h"

namespace muster::engine {

namespace {

// Orthogonalized matrices that are kept in f32 at once.
constexpr int64_t kBatchBytes = int64_t{64} << 20;

int64_t weight_bytes(WeightForm form) { return form == WeightForm::kF32 ? 4 : 2; }
int64_t extra_bytes(WeightForm form) { return form == WeightForm::kBf16Mantissa ? 2 : 4; }

template <typename T>
T* at(T* base, int64_t elements, int64_t width) {
  using Byte = std::conditional_t<std::is_const_v<T>, const std::byte, std::byte>;
  return base == nullptr ? nullptr : static_cast<T*>(reinterpret_cast<Byte*>(base) + elements * width);
}

void add_row(Dtype dtype, const void* from, int64_t count, float* to) {
  if (dtype == Dtype::kF32) {
    const auto* const values = static_cast<const float*>(from);
    for (int64_t i = 0; i < count; ++i) to[i] += values[i];
    return;
  }
  const auto* const values = static_cast<const uint16_t*>(from);
  for (int64_t i = 0; i < count; ++i) to[i] += std::bit_cast<float>(static_cast<uint32_t>(values[i]) << 16);
}

// A fixed number for a parameter, the same on every rank and in every layout.
uint64_t stream_of(const std::string& name) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

double scale_of(const plan::Catalog& catalog, int32_t matrix, StepScale scale) {
  const Parameter& p = catalog.problem().parameters[catalog.parameter_of(matrix)];
  const int64_t rows = catalog.rows(matrix);
  const int64_t columns = catalog.columns(matrix);
  return p.output_dim == 0 ? kernels::step_scale(scale, rows, columns) : kernels::step_scale(scale, columns, rows);
}

}  // namespace

Optimizer::Optimizer(Problem problem, const OptimizerOptions& options, Communicator& communicator,
                     kernels::Kernels& kernels, std::vector<ParameterMemory> memory, std::vector<int32_t> group_of,
                     int32_t groups)
    : problem_(std::move(problem)),
      options_(options),
      communicator_(communicator),
      kernels_(kernels),
      memory_(std::move(memory)),
      group_of_(std::move(group_of)),
      groups_(groups),
      catalog_((validate(problem_), problem_)),
      plan_(make_plan(problem_, options.plan)),
      program_(compile(catalog_, plan_, communicator.rank())),
      coefficients_(coefficients(options.coefficients)) {
  if (communicator.size() != problem_.ranks) {
    throw InvalidArgument(
        fmt::format("a problem of {} ranks on a communicator of {}", problem_.ranks, communicator.size()));
  }
  const size_t parameters = problem_.parameters.size();
  if (memory_.size() != parameters || group_of_.size() != parameters) {
    throw InvalidArgument(fmt::format("{} parameters, but memory for {} and groups for {}", parameters, memory_.size(),
                                      group_of_.size()));
  }
  for (size_t p = 0; p < parameters; ++p) {
    if (group_of_[p] < 0 || group_of_[p] >= groups) {
      throw InvalidArgument(
          fmt::format("parameter '{}': group {} of {}", problem_.parameters[p].name, group_of_[p], groups));
    }
    if (weight_bytes(memory_[p].form) != byte_size(problem_.parameters[p].dtype)) {
      throw InvalidArgument(
          fmt::format("parameter '{}': memory of another width than its dtype", problem_.parameters[p].name));
    }
  }
  for (int32_t j = 0; j < catalog_.matrix_count(); ++j) scale_.push_back(scale_of(catalog_, j, options.scale));
  arena_.resize(program_.arena_bytes);
  momentum_.resize(program_.momentum_elements * byte_size(options.momentum));
  variance_.resize(program_.variance_elements);
  first_moment_.resize(program_.moment_elements);
  second_moment_.resize(program_.moment_elements);
  in_flight_.resize(program_.waves.size());
  agree();
}

// Ranks that plan different things would wait for messages nobody sends.
void Optimizer::agree() {
  const auto ranks = static_cast<size_t>(problem_.ranks);
  const uint64_t mine[] = {plan_.hash, problem_.parameters.size()};
  std::vector<uint64_t> all(2 * ranks);
  communicator_.all_gather(mine, all.data(), sizeof mine, "compare plans")->wait();
  bool same = true;
  bool same_count = true;
  for (size_t r = 0; r < ranks; ++r) {
    same = same && all[2 * r] == mine[0];
    same_count = same_count && all[2 * r + 1] == mine[1];
  }
  if (same) return;
  if (!same_count)
    throw InvalidArgument(fmt::format("ranks disagree: rank {} has {} parameters", communicator_.rank(), mine[1]));
  const std::vector<uint64_t> prints = plan::parameter_fingerprints(problem_);
  std::vector<uint64_t> others(prints.size() * ranks);
  communicator_
      .all_gather(prints.data(), others.data(), static_cast<int64_t>(prints.size() * sizeof(uint64_t)),
                  "compare parameters")
      ->wait();
  for (size_t p = 0; p < prints.size(); ++p) {
    for (size_t r = 0; r < ranks; ++r) {
      if (others[r * prints.size() + p] == others[p]) continue;
      throw InvalidArgument(
          fmt::format("ranks disagree: parameter {} ('{}' on rank {}) is not the same on ranks 0 and {}", p,
                      problem_.parameters[p].name, communicator_.rank(), r));
    }
  }
  throw InvalidArgument("ranks disagree: same parameters, but other options, cost tables or versions");
}

void Optimizer::step(std::span<const void* const> gradients) {
  if (gradients.size() != problem_.parameters.size()) {
    throw InvalidArgument(fmt::format("{} gradients for {} parameters", gradients.size(), problem_.parameters.size()));
  }
  if (!broken_.empty()) throw CommError(broken_);
  ++step_;
  try {
    run_waves(gradients);
  } catch (const CommError& error) {
    broken_ = fmt::format("step {} broke off: {}", step_, error.what());
    in_flight_ = std::vector<InFlight>(program_.waves.size());
    throw CommError(broken_);
  }
}

void Optimizer::run_waves(std::span<const void* const> gradients) {
  const size_t waves = program_.waves.size();
  // While wave w computes, w + 1 arrives and w - 1 leaves.
  start_in(0, gradients);
  for (size_t w = 0; w < waves; ++w) {
    if (w + 1 < waves) start_in(w + 1, gradients);
    compute(w, gradients);
    start_out(w);
    if (w > 0) finish(w - 1);
  }
  finish(waves - 1);
}

std::unique_ptr<Request> Optimizer::exchange(size_t w, const std::vector<Transfer>& sends,
                                             const std::vector<Transfer>& receives, std::string_view direction) {
  std::vector<Send> out;
  std::vector<Receive> in;
  for (const Transfer& t : sends) out.push_back({t.peer, part(w) + t.span.offset, t.span.bytes});
  for (const Transfer& t : receives) in.push_back({t.peer, part(w) + t.span.offset, t.span.bytes});
  return communicator_.exchange(out, in, fmt::format("step {} wave {} {}", step_, w, direction));
}

void Optimizer::start_in(size_t w, std::span<const void* const> gradients) {
  const WaveProgram& wave = program_.waves[w];
  for (const Span& span : wave.zero) std::memset(part(w) + span.offset, 0, static_cast<size_t>(span.bytes));
  // Steps of one group and gradient dtype in one call.
  std::vector<kernels::MomentumBlock> blocks;
  for (size_t i = 0; i < wave.pack.size(); ++i) {
    const PackStep& step = wave.pack[i];
    const Parameter& p = problem_.parameters[step.parameter];
    const int64_t width = byte_size(p.grad_dtype);
    const int64_t momentum_width = byte_size(options_.momentum);
    blocks.push_back({step.block.rows, step.block.columns, at(gradients[step.parameter], step.block.first, width),
                      step.block.first_stride, momentum_.data() + step.momentum * momentum_width, step.block.columns,
                      part(w) + step.block.second * byte_size(problem_.wire), step.block.second_stride});
    const bool last = i + 1 == wave.pack.size() || wave.pack[i + 1].parameter != step.parameter;
    if (!last) continue;
    const Hyperparameters& h = groups_[group_of_[step.parameter]];
    kernels_.momentum_pack(
        {p.grad_dtype, options_.momentum, problem_.wire, options_.momentum_form, h.nesterov, h.mu, 1}, blocks);
    blocks.clear();
  }
  copy(w, wave.gather);
  for (const GradientStep& step : wave.gradients) {
    const int64_t width = byte_size(problem_.parameters[step.parameter].grad_dtype);
    const Block& b = step.block;
    for (int64_t i = 0; i < b.rows; ++i) {
      std::memcpy(part(w) + step.staged + i * b.columns * width,
                  at(gradients[step.parameter], b.first + i * b.first_stride, width),
                  static_cast<size_t>(b.columns * width));
    }
  }
  in_flight_[w].in = exchange(w, wave.send_in, wave.receive_in, "in");
}

void Optimizer::copy(size_t w, std::span<const CopyStep> steps) {
  const int64_t width = byte_size(problem_.wire);
  for (const CopyStep& step : steps) {
    for (int64_t i = 0; i < step.rows; ++i) {
      std::memcpy(part(w) + (step.to + i * step.to_stride) * width,
                  part(w) + (step.from + i * step.from_stride) * width, static_cast<size_t>(step.columns * width));
    }
  }
}

void Optimizer::compute(size_t w, std::span<const void* const> gradients) {
  const WaveProgram& wave = program_.waves[w];
  for (const RangeStep& range : wave.ranges) {
    if (range.sum < 0) update(range, w, gradients);
  }
  in_flight_[w].in->wait();
  copy(w, wave.assemble);
  average(w, gradients);
  for (const RangeStep& range : wave.ranges) {
    if (range.sum >= 0) update(range, w, gradients);
  }
  for (const OwnedBatch& batch : wave.owned) orthogonalize(w, batch);
  apply(wave.apply_first, w);
}

// Sums in the order of the ranks, in f32.
void Optimizer::average(size_t w, std::span<const void* const> gradients) {
  const WaveProgram& wave = program_.waves[w];
  auto* const f32 = reinterpret_cast<float*>(part(w));
  for (const Span& span : wave.sums) std::memset(part(w) + span.offset, 0, static_cast<size_t>(span.bytes));
  for (const SumStep& step : wave.sum) {
    const Dtype dtype = problem_.parameters[step.parameter].grad_dtype;
    const int64_t width = byte_size(dtype);
    const Block& b = step.block;
    for (int64_t i = 0; i < b.rows; ++i) {
      const void* row = step.staged < 0 ? at(gradients[step.parameter], b.first + i * b.first_stride, width)
                                        : part(w) + step.staged + i * b.columns * width;
      add_row(dtype, row, b.columns, f32 + b.second + i * b.second_stride);
    }
  }
  for (const AverageStep& step : wave.average) {
    for (int64_t i = 0; i < step.count; ++i) f32[step.sum + i] /= static_cast<float>(step.replicas);
  }
  for (const OwnerMomentumStep& step : wave.owner_momentum) {
    const Hyperparameters& h = groups_[group_of_[step.parameter]];
    const kernels::MomentumBlock block{1,
                                       step.count,
                                       f32 + step.sum,
                                       step.count,
                                       momentum_.data() + step.momentum * byte_size(options_.momentum),
                                       step.count,
                                       part(w) + step.assembled * byte_size(problem_.wire),
                                       step.count};
    kernels_.momentum_pack({Dtype::kF32, options_.momentum, problem_.wire, options_.momentum_form, h.nesterov, h.mu, 1},
                           {&block, 1});
  }
}

void Optimizer::orthogonalize(size_t w, const OwnedBatch& batch) {
  const int64_t width = byte_size(problem_.wire);
  const int64_t elements = batch.rows * batch.columns;
  const kernels::MatrixShape shape{batch.rows, batch.columns};
  const auto most = static_cast<size_t>(std::max<int64_t>(1, kBatchBytes / (elements * 4)));
  for (size_t begin = 0; begin < batch.matrices.size(); begin += most) {
    const size_t count = std::min(most, batch.matrices.size() - begin);
    const auto n = static_cast<int64_t>(count);
    const int64_t bytes =
        std::max(kernels_.orthogonalize_workspace(shape, n), batch.normuon ? kernels_.normuon_workspace(shape, n) : 0);
    if (static_cast<int64_t>(workspace_.size()) < bytes + 64) workspace_.resize(bytes + 64);
    auto* const aligned = reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(workspace_.data()) + 63) / 64 * 64);
    if (batch.normuon && static_cast<int64_t>(orthogonal_.size()) < n * elements) orthogonal_.resize(n * elements);

    std::vector<kernels::MatrixPair> pairs;
    std::map<int32_t, std::vector<kernels::NorMuonMatrix>> scaled;  // by group
    for (size_t i = 0; i < count; ++i) {
      const OwnedMatrix& m = batch.matrices[begin + i];
      std::byte* const matrix = part(w) + m.assembled * width;
      float* const o = orthogonal_.data() + static_cast<int64_t>(i) * elements;
      pairs.push_back({matrix, batch.normuon ? static_cast<void*>(o) : matrix});
      if (batch.normuon) scaled[group_of_[m.parameter]].push_back({o, variance_.data() + m.variance, matrix});
    }
    kernels_.orthogonalize({coefficients_, 0, problem_.wire, batch.normuon ? Dtype::kF32 : problem_.wire}, shape, pairs,
                           {aligned, bytes});
    const auto axis = batch.norm_axis == NormAxis::kRows ? kernels::LineAxis::kRows : kernels::LineAxis::kColumns;
    for (const auto& [group, matrices] : scaled) {
      kernels_.normuon({axis, groups_[group].beta2, groups_[group].eps, problem_.wire}, shape, matrices,
                       {aligned, bytes});
    }
  }
}

kernels::WeightBlock Optimizer::weight(int32_t parameter, int64_t first, int64_t stride, int64_t index,
                                       int64_t index_stride) const {
  const ParameterMemory& m = memory_[parameter];
  return {at(m.weight, first, weight_bytes(m.form)),
          at(m.extra, first, extra_bytes(m.form)),
          stride,
          stream_of(problem_.parameters[parameter].name),
          index,
          index_stride};
}

void Optimizer::update(const RangeStep& step, size_t w, std::span<const void* const> gradients) {
  const Parameter& p = problem_.parameters[step.parameter];
  const Hyperparameters& h = groups_[group_of_[step.parameter]];
  const double lr = h.lr * p.multiplier;
  const bool summed = step.sum >= 0;
  const Dtype dtype = summed ? Dtype::kF32 : p.grad_dtype;
  const void* grad = summed ? part(w) + step.sum * 4 : at(gradients[step.parameter], step.first, byte_size(dtype));
  const kernels::ElementRange range{step.count,
                                    grad,
                                    first_moment_.data() + step.moment,
                                    second_moment_.data() + step.moment,
                                    weight(step.parameter, step.first, 0, step.index, 0),
                                    lr,
                                    lr * h.weight_decay};
  const WeightForm form = memory_[step.parameter].form;
  const kernels::Rounding rounding{options_.seed, static_cast<uint64_t>(step_)};
  if (p.algorithm == Algorithm::kLion) {
    kernels_.lion({dtype, form, h.decay, rounding, h.beta1, h.beta2, 1}, {&range, 1});
  } else {
    kernels_.adamw({dtype, form, h.decay, rounding, h.beta1, h.beta2, h.eps, step_, 1}, {&range, 1});
  }
}

void Optimizer::start_out(size_t w) {
  const WaveProgram& wave = program_.waves[w];
  copy(w, wave.stage_out);
  for (const WeightStep& step : wave.weights_out) {
    const int64_t width = weight_bytes(memory_[step.parameter].form);
    for (int64_t i = 0; i < step.block.rows; ++i) {
      std::memcpy(part(w) + step.staged + i * step.block.columns * width,
                  at(memory_[step.parameter].weight, step.block.first + i * step.block.first_stride, width),
                  static_cast<size_t>(step.block.columns * width));
    }
  }
  in_flight_[w].out = exchange(w, wave.send_out, wave.receive_out, "out");
}

void Optimizer::apply(const std::vector<ApplyStep>& steps, size_t w) {
  const kernels::Rounding rounding{options_.seed, static_cast<uint64_t>(step_)};
  std::vector<kernels::ApplyBlock> blocks;
  for (size_t i = 0; i < steps.size(); ++i) {
    const ApplyStep& step = steps[i];
    const Hyperparameters& h = groups_[group_of_[step.parameter]];
    const double lr = h.lr * problem_.parameters[step.parameter].multiplier;
    const Block& b = step.block;
    blocks.push_back({b.rows, b.columns, part(w) + b.second * byte_size(problem_.wire), b.second_stride,
                      weight(step.parameter, b.first, b.first_stride, b.index, b.index_stride),
                      lr * scale_[step.matrix], lr * h.weight_decay});
    if (i + 1 < steps.size() && steps[i + 1].parameter == step.parameter) continue;
    kernels_.apply({problem_.wire, memory_[step.parameter].form, h.decay, rounding}, blocks);
    blocks.clear();
  }
}

void Optimizer::finish(size_t w) {
  const WaveProgram& wave = program_.waves[w];
  in_flight_[w].out->wait();
  apply(wave.apply, w);
  for (const WeightStep& step : wave.weights_in) {
    const int64_t width = weight_bytes(memory_[step.parameter].form);
    for (int64_t i = 0; i < step.block.rows; ++i) {
      std::memcpy(at(memory_[step.parameter].weight, step.block.first + i * step.block.first_stride, width),
                  part(w) + step.staged + i * step.block.columns * width,
                  static_cast<size_t>(step.block.columns * width));
    }
  }
  in_flight_[w] = {};
}

}  // namespace muster::engine
