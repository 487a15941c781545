#include "reference_check.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <set>

#include <fmt/format.h>

#include "plan/matrices.h"
#include "reference/reference.h"
#include "run/rows.h"

namespace muster::cli {
namespace {

using reference::Vector;

constexpr double kCheapWork = 2e10;           // FLOPs for matrices beyond one of each kind
constexpr int64_t kSampleElements = 1 << 18;  // of an AdamW or Lion parameter
constexpr int64_t kSamplePieces = 16;         // they are taken in so many stretches

reference::Wire wire_of(Dtype dtype) { return dtype == Dtype::kF32 ? reference::Wire::kF32 : reference::Wire::kBf16; }

reference::Decay decay_of(Decay decay) {
  return decay == Decay::kPlain ? reference::Decay::kPlain : reference::Decay::kCautious;
}

reference::Scale scale_of(StepScale scale) {
  switch (scale) {
    case StepScale::kSpectral:
      return reference::Scale::kSpectral;
    case StepScale::kJordan:
      return reference::Scale::kJordan;
    case StepScale::kRms:
      return reference::Scale::kRms;
    case StepScale::kFan:
      return reference::Scale::kFan;
    case StepScale::kNone:
      break;
  }
  return reference::Scale::kNone;
}

// (output, input) of the shape whose scale a matrix takes.
std::pair<int64_t, int64_t> scale_shape(const Parameter& p, const plan::Matrix& matrix) {
  int64_t rows = matrix.rows;
  int64_t columns = matrix.columns;
  if (p.scale_shape == ScaleShape::kParameter) {
    const run::UncutMatrix uncut = run::uncut_matrix(p);
    rows = uncut.rows;
    columns = uncut.columns;
  }
  return p.output_dim == 0 ? std::pair(rows, columns) : std::pair(columns, rows);
}

// Matrices with equal text go through the same arithmetic.
std::string settings_text(const Parameter& p, const plan::Matrix& m) {
  const auto [output, input] = scale_shape(p, m);
  return fmt::format("{}x{} {} {} {} {} {} {}x{} {}", m.rows, m.columns, m.normuon, static_cast<int>(m.norm_axis),
                     static_cast<int>(p.dtype), static_cast<int>(p.grad_dtype), static_cast<int>(p.algorithm), output,
                     input, p.multiplier);
}

double work_of(const plan::Matrix& m) {
  const auto s = static_cast<double>(std::min(m.rows, m.columns));
  const auto l = static_cast<double>(std::max(m.rows, m.columns));
  return 5 * (4 * s * s * l + 2 * s * s * s) + 100 * s * l;
}

Vector numbers(Dtype dtype, std::span<const std::byte> bytes) {
  const auto width = static_cast<size_t>(byte_size(dtype));
  Vector out(bytes.size() / width);
  for (size_t i = 0; i < out.size(); ++i) {
    uint32_t bits = 0;
    std::memcpy(&bits, bytes.data() + i * width, width);
    out[i] = std::bit_cast<float>(dtype == Dtype::kF32 ? bits : bits << 16);
  }
  return out;
}

// The elements that a matrix is made of, and maybe others between them.
layout::Interval range_of(const Shape& shape, const std::vector<layout::Run>& runs) {
  layout::Interval range{std::numeric_limits<int64_t>::max(), 0};
  for (const layout::Run& run : runs) {
    run::for_each_row(shape, run, [&](const run::Row& row) {
      range.begin = std::min(range.begin, row.first);
      range.end = std::max(range.end, row.first + row.count);
    });
  }
  return range;
}

// A sample of so many elements: all, or stretches of which the first begins with them and the last ends with them.
std::vector<layout::Interval> sample_of(int64_t count) {
  if (count <= kSampleElements) return {{0, count}};
  constexpr int64_t kLength = kSampleElements / kSamplePieces;
  std::vector<layout::Interval> ranges;
  for (int64_t piece = 0; piece < kSamplePieces; ++piece) {
    const int64_t begin =
        piece == kSamplePieces - 1 ? count - kLength : (count - kLength) / (kSamplePieces - 1) * piece;
    ranges.push_back({begin, begin + kLength});
  }
  return ranges;
}

// Values of the parameter from `begin` on, as the matrix has them.
template <typename Values>
Vector gathered(const Shape& shape, const std::vector<layout::Run>& runs, const Values& values, int64_t begin) {
  Vector out;
  for (const layout::Run& run : runs) {
    run::for_each_row(shape, run, [&](const run::Row& row) {
      const auto end = static_cast<size_t>(row.offset + row.count);
      if (out.size() < end) out.resize(end);
      for (int64_t i = 0; i < row.count; ++i) out[row.offset + i] = values[row.first + i - begin];
    });
  }
  return out;
}

void round_weights(Dtype dtype, Vector& weights) {
  if (dtype == Dtype::kF32) return;
  for (double& w : weights) w = reference::round_to_wire(w, reference::Wire::kBf16);
}

// The distance between neighbours of a bf16 number.
double bf16_unit(double value) {
  int exponent = 0;
  std::frexp(value, &exponent);
  return std::ldexp(1.0, exponent - 8);
}

// How far weights are off and how far they went.
struct Distances {
  Vector off;
  Vector went;
};

// A bf16 weight can be one unit away for a difference that is none to speak of: an exact value near the middle of two.
Distances distances(Dtype dtype, const Vector& before, const Vector& expected, const Vector& got) {
  Distances out;
  for (size_t i = 0; i < expected.size(); ++i) {
    double error = got[i] - expected[i];
    if (dtype != Dtype::kF32) {
      const double unit = bf16_unit(std::max(std::abs(got[i]), std::abs(expected[i])));
      error = std::copysign(std::max(0.0, std::abs(error) - unit), error);
    }
    out.off.push_back(error);
    out.went.push_back(expected[i] - before[i]);
  }
  return out;
}

double norm(const Vector& values) {
  double sum = 0;
  for (const double v : values) sum += v * v;
  return std::sqrt(sum);
}

double ratio(double off, double went) {
  if (!std::isfinite(off)) return std::numeric_limits<double>::infinity();
  return went > 0 ? off / went : off;
}

double relative_error(const Distances& d) { return ratio(norm(d.off), norm(d.went)); }

// The same, with each direction of the short side counting as much as the momentum has of it.
double error_along(const reference::Matrix& momentum, const Distances& d) {
  const bool tall = momentum.rows > momentum.columns;
  const auto along = [&](const Vector& values) {
    const reference::Matrix matrix{momentum.rows, momentum.columns, values};
    return reference::frobenius_norm(tall ? multiply(transpose(momentum), matrix)
                                          : multiply(matrix, transpose(momentum)));
  };
  return ratio(along(d.off), along(d.went));
}

reference::MuonOptions muon_options(const Problem& problem, const Group& group, const Parameter& p,
                                    const plan::Matrix& matrix) {
  reference::MuonOptions options;
  options.momentum.mu = group.momentum;
  options.momentum.form = group.momentum_form == MomentumForm::kEma ? reference::MomentumOptions::Form::kEma
                                                                    : reference::MomentumOptions::Form::kSum;
  options.momentum.nesterov = group.nesterov;
  options.wire = wire_of(problem.wire);
  for (const Coefficients::Step& s : group.coefficients.steps) {
    options.newton_schulz.steps.push_back({s.a, s.b, s.c});
  }
  options.newton_schulz.safety = group.coefficients.safety;
  options.newton_schulz.aol = group.coefficients.rescale == Coefficients::Rescale::kAol;
  options.newton_schulz.gram_norm = group.coefficients.rescale == Coefficients::Rescale::kGram;
  options.newton_schulz.sketch = group.coefficients.sketch;
  options.normuon = matrix.normuon;
  options.norm.axis = matrix.norm_axis == NormAxis::kColumns ? reference::Axis::kColumns : reference::Axis::kRows;
  options.norm.beta2 = group.beta2;
  options.norm.eps = group.eps;
  const auto [output, input] = scale_shape(p, matrix);
  options.apply = {0, reference::shape_scale(scale_of(group.scale), output, input), group.weight_decay,
                   decay_of(group.decay)};
  return options;
}

}  // namespace

ReferenceCheck::ReferenceCheck(const run::Workload& workload, const Options& options, Communicator& communicator)
    : workload_(workload), options_(options), communicator_(communicator), jobs_(choose_jobs(workload)) {
  // Longest first to the rank that has least.
  std::vector<size_t> order(jobs_.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, std::greater<>(), [this](size_t i) { return jobs_[i].work; });
  std::vector<double> load(static_cast<size_t>(communicator.size()));
  for (const size_t i : order) {
    const auto least = std::ranges::min_element(load);
    *least += jobs_[i].work;
    jobs_[i].rank = static_cast<int32_t>(least - load.begin());
  }
}

int64_t ReferenceCheck::kept_bytes(const run::Workload& workload) {
  int64_t bytes = 0;
  for (const Job& job : choose_jobs(workload)) {
    for (const layout::Interval& range : job.ranges) {
      bytes += range.size() * byte_size(workload.problem().parameters[job.parameter].dtype);
    }
  }
  return bytes;
}

std::vector<ReferenceCheck::Job> ReferenceCheck::choose_jobs(const run::Workload& workload) {
  const Problem& problem = workload.problem();
  std::vector<Job> jobs;
  std::set<std::string> seen;
  double cheap = 0;
  for (int32_t p = 0; p < static_cast<int32_t>(problem.parameters.size()); ++p) {
    const Parameter& parameter = problem.parameters[p];
    if (!is_matrix_algorithm(parameter.algorithm)) {
      const int64_t count = element_count(parameter.shape);
      const auto checked = static_cast<double>(std::min(count, kSampleElements));
      if (count > 0) jobs.push_back({.parameter = p, .work = 200 * checked, .ranges = sample_of(count)});
      continue;
    }
    const plan::MatrixGrid grid(parameter);
    for (int32_t m = 0; m < grid.count(); ++m) {
      const plan::Matrix matrix = grid.at(m);
      const double work = work_of(matrix);
      const bool is_new = seen.insert(settings_text(parameter, matrix)).second;
      if (!is_new && cheap + work > kCheapWork) continue;
      if (!is_new) cheap += work;
      jobs.push_back({.parameter = p, .matrix = m, .work = work, .ranges = {range_of(parameter.shape, grid.runs(m))}});
    }
  }
  return jobs;
}

// Directions with almost nothing in them grow to something, and so does rounding there.
bool ReferenceCheck::amplifies() const {
  switch (workload_.options().spectrum) {
    case run::Spectrum::kDecaying:
    case run::Spectrum::kSteep:
    case run::Spectrum::kLowRank:
    case run::Spectrum::kOutliers:
      return true;
    case run::Spectrum::kNormal:
    case run::Spectrum::kGraded:
    case run::Spectrum::kEqual:
      break;
  }
  return false;
}

// See docs/lab/verify-tolerances-2026-11.md for why. Along the momentum 0: not looked at.
ReferenceCheck::Errors ReferenceCheck::tolerances(const Job& job) const {
  const bool f32 = workload_.problem().wire == Dtype::kF32;
  const bool cuda = options_.device == Device::Kind::kCuda;
  if (job.matrix < 0) return {f32 ? 5e-4 : 5e-3};
  if (amplifies()) {
    // On a GPU the cap finds the largest directions in half precision.
    if (!f32) return {0.7, cuda && workload_.options().coefficients.sketch != 0 ? 0.4 : 0.25};
    if (cuda) return {1.2, 0.5};
    // A cap raises what is below it up to 2^7 / 0.3 times as far, and then come the steps.
    return workload_.options().coefficients.sketch != 0 ? Errors{4e-2, 1.2e-2} : Errors{6e-3, 3e-3};
  }
  if (!cuda) return {f32 ? 5e-4 : 5e-3};
  if (workload_.options().spectrum == run::Spectrum::kEqual) return {0.5};
  return {workload_.options().spectrum == run::Spectrum::kGraded ? 0.2 : 5e-2};
}

void ReferenceCheck::Result::add(double error, double allowed, const std::string& name) {
  if (error / allowed < share()) return;
  max_error = error;
  tolerance = allowed;
  worst = name;
}

void ReferenceCheck::take(int32_t parameter, std::span<const std::byte> whole) {
  const int64_t width = byte_size(workload_.problem().parameters[parameter].dtype);
  for (Job& job : jobs_) {
    if (job.parameter != parameter || job.rank != communicator_.rank()) continue;
    for (const layout::Interval& range : job.ranges) {
      job.after.insert(job.after.end(), whole.begin() + range.begin * width, whole.begin() + range.end * width);
    }
  }
}

ReferenceCheck::Result ReferenceCheck::run() {
  Result result;
  result.tolerance = tolerances({.matrix = 0}).whole;
  std::vector<Errors> errors(jobs_.size());
  for (size_t i = 0; i < jobs_.size(); ++i) {
    Job& job = jobs_[i];
    const Parameter& p = workload_.problem().parameters[job.parameter];
    if (job.matrix >= 0) ++result.matrices;
    if (job.matrix < 0) result.elements += std::min(element_count(p.shape), kSampleElements);
    if (job.rank != communicator_.rank()) continue;
    errors[i] = job.matrix >= 0 ? matrix_errors(job) : Errors{elements_error(job)};
    job.after = {};
  }
  share(errors);
  for (size_t i = 0; i < jobs_.size(); ++i) {
    const Errors allowed = tolerances(jobs_[i]);
    std::string name = workload_.problem().parameters[jobs_[i].parameter].name;
    if (jobs_[i].matrix >= 0) name += fmt::format(", matrix {}", jobs_[i].matrix);
    result.add(errors[i].whole, allowed.whole, name);
    if (allowed.along > 0) result.add(errors[i].along, allowed.along, name + ", along its momentum");
  }
  return result;
}

// Each error is known to one rank; the others have zeros.
void ReferenceCheck::share(std::vector<Errors>& errors) {
  std::vector<double> flat;
  for (const Errors& e : errors) flat.insert(flat.end(), {e.whole, e.along});
  if (!flat.empty()) communicator_.all_reduce(std::span<double>(flat), ReduceOp::kMax, "errors")->wait();
  for (size_t i = 0; i < errors.size(); ++i) errors[i] = {flat[2 * i], flat[2 * i + 1]};
}

ReferenceCheck::Errors ReferenceCheck::matrix_errors(const Job& job) const {
  const Problem& problem = workload_.problem();
  const Parameter& p = problem.parameters[job.parameter];
  const plan::MatrixGrid grid(p);
  const plan::Matrix matrix = grid.at(job.matrix);
  const std::vector<layout::Run> runs = grid.runs(job.matrix);
  const layout::Interval range = job.ranges.front();

  const Vector before = gathered(p.shape, runs, workload_.weights(job.parameter, range), range.begin);
  reference::Matrix weight{matrix.rows, matrix.columns, before};
  reference::MuonOptions options = muon_options(problem, workload_.groups()[0], p, matrix);
  reference::MuonState state;
  for (int64_t step = 0; step < options_.steps; ++step) {
    if (!workload_.has_gradient(job.parameter, run::kWhole, step)) continue;
    options.apply.lr = run::workload_lr(0, step) * p.multiplier;
    const Vector grad = gathered(p.shape, runs, workload_.gradients(job.parameter, range, step), range.begin);
    reference::muon_step(options, {matrix.rows, matrix.columns, grad}, state, weight);
    round_weights(p.dtype, weight.data);
  }
  const Vector got = gathered(p.shape, runs, numbers(p.dtype, job.after), range.begin);
  const Distances d = distances(p.dtype, before, weight.data, got);
  if (!amplifies() || state.momentum.empty()) return {relative_error(d)};
  return {relative_error(d), error_along({matrix.rows, matrix.columns, state.momentum}, d)};
}

double ReferenceCheck::elements_error(const Job& job) const {
  const Parameter& p = workload_.problem().parameters[job.parameter];
  const int32_t index = run::workload_group(p.algorithm);
  const Group group = workload_.groups()[index];
  Vector before;
  Vector expected;
  for (const layout::Interval& range : job.ranges) {
    const std::vector<float> start = workload_.weights(job.parameter, range);
    Vector weight(start.begin(), start.end());
    before.insert(before.end(), start.begin(), start.end());
    Vector first;
    Vector second;
    int64_t updates = 0;
    for (int64_t step = 0; step < options_.steps; ++step) {
      if (!workload_.has_gradient(job.parameter, run::kWhole, step)) continue;
      const std::vector<float> values = workload_.gradients(job.parameter, range, step);
      const Vector grad(values.begin(), values.end());
      const double lr = run::workload_lr(index, step) * p.multiplier;
      if (p.algorithm == Algorithm::kAdamW) {
        reference::adamw(
            {lr, group.beta1, group.beta2, group.eps, group.weight_decay, decay_of(group.decay), ++updates}, grad,
            first, second, weight);
      } else {
        reference::lion({lr, group.beta1, group.beta2, group.weight_decay, decay_of(group.decay)}, grad, first, weight);
      }
      round_weights(p.dtype, weight);
    }
    expected.insert(expected.end(), weight.begin(), weight.end());
  }
  return relative_error(distances(p.dtype, before, expected, numbers(p.dtype, job.after)));
}

}  // namespace muster::cli
