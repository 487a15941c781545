// Orthogonalization in batches: how large they are, which lane takes them, and what runs in one call.
#include <algorithm>

#include <fmt/format.h>

#include "base/alignment.h"
#include "engine/step/wave_executor.h"

namespace muster::engine {

// One matrix always fits, because the plan has seen to that; more matrices, and more lanes, as far as there is room.
void WaveExecutor::allocate_workspace(int64_t scratch_cap) {
  const int64_t worth = kernels_.largest_workspace();
  const int64_t left = scratch_cap == 0 ? worth : std::min(worth, scratch_cap - arena_.size());
  int64_t one = 0;
  int64_t wanted = 0;
  const auto look_at = [&](const BatchSet& set) {
    const int64_t matrices = std::min(static_cast<int64_t>(set.matrices), best_batch_size(set.key));
    one = std::max(one, batch_layout(set, 1).total());
    wanted = std::max(wanted, kernels_.lanes() * batch_layout(set, matrices).total());
  };
  for (const WaveProgram& wave : step_.program->waves) {
    for (const OwnedBatch& batch : wave.owned) look_at({batch.key, false, batch.matrices.size()});
    for (const HomeBatch& batch : wave.home) look_at({batch.key, true, batch.matrices.size()});
  }
  const int64_t bytes = std::max(one, std::min(wanted, left));
  lanes_ = one == 0 ? 1 : static_cast<int>(std::clamp<int64_t>(bytes / one, 1, kernels_.lanes()));
  workspace_ = {kernels_, bytes};
}

kernels::OrthogonalizeOptions WaveExecutor::orthogonalize_options(const BatchKey& key) const {
  const Group& g = step_.groups[key.group];
  kernels::OrthogonalizeOptions options{g.coefficients, context_.problem.wire, {}};
  if (key.normuon) {
    const auto axis = key.norm_axis == NormAxis::kRows ? kernels::LineAxis::kRows : kernels::LineAxis::kColumns;
    options.normuon = {axis, g.beta2, g.eps};
  }
  return options;
}

WaveExecutor::BatchLayout WaveExecutor::batch_layout(const BatchSet& set, int64_t matrices) const {
  const kernels::MatrixShape shape{set.key.rows, set.key.columns};
  BatchLayout layout;
  layout.matrices = matrices;
  constexpr int64_t kAlign = DeviceBuffer::kAlign;
  if (set.home) layout.update_bytes = base::round_up(shape.rows * shape.columns * wire_bytes_, kAlign);
  layout.kernel_bytes = base::round_up(kernel_workspace(set.key, matrices), kAlign);
  return layout;
}

WaveExecutor::BatchLayout WaveExecutor::best_batch(const BatchSet& set) const {
  const int64_t most = std::min(static_cast<int64_t>(set.matrices), best_batch_size(set.key));
  const auto fits = [&](int64_t count) { return batch_layout(set, count).total() <= workspace_.size() / lanes_; };
  int64_t count = 1;
  for (int64_t high = most; count < high;) {
    const int64_t middle = (count + high + 1) / 2;
    if (fits(middle)) {
      count = middle;
    } else {
      high = middle - 1;
    }
  }
  // The remainder of a multiple of it would put all threads on one matrix, which is slower than one matrix per thread.
  const int64_t unit = kernels_.concurrent_matrices();
  if (count < most && count > unit) count = count / unit * unit;
  return batch_layout(set, count);
}

template <typename Work>
void WaveExecutor::for_batches(const BatchSet& set, Work work) {
  const BatchLayout layout = best_batch(set);
  const int64_t lane_bytes = workspace_.size() / lanes_ / DeviceBuffer::kAlign * DeviceBuffer::kAlign;
  const bool in_lanes = lanes_ > 1 && step_.stats == nullptr;
  for (size_t first = 0; first < set.matrices; first += static_cast<size_t>(layout.matrices)) {
    const size_t count = std::min(static_cast<size_t>(layout.matrices), set.matrices - first);
    if (in_lanes) kernels_.lane(lane_);
    work(first, count, layout, workspace_.data() + lane_ * lane_bytes);
    if (in_lanes) lane_ = (lane_ + 1) % lanes_;
  }
}

void WaveExecutor::orthogonalize(size_t w, const OwnedBatch& batch) {
  for_batches({batch.key, false, batch.matrices.size()}, [&](size_t first, size_t count, const BatchLayout& layout,
                                                             std::byte* workspace) {
    std::vector<kernels::UpdateMatrix> matrices;
    std::vector<RuleMatrix> ruled;
    for (size_t i = first; i < first + count; ++i) {
      const OwnedMatrix& m = batch.matrices[i];
      if (batch.key.rule) {
        ruled.push_back(rule_matrix(m.parameter, part(w) + m.assembled * wire_bytes_, m.rule_state));
        continue;
      }
      float* const variance = m.assembled_variance >= 0 ? reinterpret_cast<float*>(part(w) + m.assembled_variance)
                                                        : context_.state.variance(m.parameter, m.variance);
      matrices.push_back({.matrix = part(w) + m.assembled * wire_bytes_,
                          .variance = variance,
                          .active = m.parameter < 0 ? nullptr : active(m.parameter),
                          .gram_error = gram_error(m.measured)});
    }
    const kernels::Workspace rest{workspace, layout.kernel_bytes};
    batch.key.rule ? run_rule(w, batch.key, ruled, rest) : orthogonalize(w, batch.key, matrices, rest);
  });
}

void WaveExecutor::orthogonalize(size_t w, const HomeBatch& batch) {
  for_batches({batch.key, true, batch.matrices.size()},
              [&](size_t first, size_t count, const BatchLayout& layout, std::byte* workspace) {
                std::vector<kernels::UpdateMatrix> matrices;
                std::vector<RuleMatrix> ruled;
                std::vector<Placed<PackStep>> packs;
                std::vector<Placed<ApplyStep>> applies;
                matrices.reserve(count);
                packs.reserve(count);
                applies.reserve(count);
                for (size_t i = 0; i < count; ++i) {
                  const HomeMatrix& m = batch.matrices[first + i];
                  std::byte* const update = workspace + static_cast<int64_t>(i) * layout.update_bytes;
                  matrices.push_back({.matrix = update,
                                      .variance = context_.state.variance(m.parameter, m.variance),
                                      .active = active(m.parameter),
                                      .gram_error = gram_error(m.measured)});
                  if (batch.key.rule) ruled.push_back(rule_matrix(m.parameter, update, m.rule_state));
                  for (const PackStep& step : m.pack) packs.push_back({&step, update});
                  for (const ApplyStep& step : m.apply) applies.push_back({&step, update});
                }
                {
                  const auto timed = time(Stage::kPack, w);
                  pack(packs);
                }
                const kernels::Workspace rest{workspace + layout.matrices * layout.update_bytes, layout.kernel_bytes};
                if (batch.key.rule) {
                  run_rule(w, batch.key, ruled, rest);
                  apply(applies);
                } else if (can_fuse(applies)) {
                  orthogonalize_and_apply(w, batch.key, matrices, rest, applies);
                } else {
                  orthogonalize(w, batch.key, matrices, rest);
                  apply(applies);
                }
              });
}

// On the host they stay two calls, because its clock tells stages apart.
bool WaveExecutor::can_fuse(std::span<const Placed<ApplyStep>> steps) const {
  if (context_.device == nullptr || step_.stats != nullptr || steps.empty()) return false;
  return std::all_of(steps.begin(), steps.end(), [&](const Placed<ApplyStep>& placed) {
    return same_call(placed.step->parameter, steps[0].step->parameter);
  });
}

void WaveExecutor::orthogonalize(size_t w, const BatchKey& key, std::span<const kernels::UpdateMatrix> matrices,
                                 const kernels::Workspace& workspace) {
  const auto timed = time_orthogonalize(w, key, matrices.size());
  kernels_.orthogonalize({.options = orthogonalize_options(key),
                          .shape = {key.rows, key.columns},
                          .matrices = matrices,
                          .workspace = workspace});
  ++stats().kernels;
  poll();
}

void WaveExecutor::orthogonalize_and_apply(size_t w, const BatchKey& key,
                                           std::span<const kernels::UpdateMatrix> matrices,
                                           const kernels::Workspace& workspace,
                                           std::span<const Placed<ApplyStep>> steps) {
  const auto timed = time_orthogonalize(w, key, matrices.size());
  std::vector<kernels::ApplyBlock> blocks;
  blocks.reserve(steps.size());
  for (const Placed<ApplyStep>& step : steps) blocks.push_back(apply_block(step));
  kernels_.orthogonalize_and_apply({.options = orthogonalize_options(key),
                                    .shape = {key.rows, key.columns},
                                    .matrices = matrices,
                                    .workspace = workspace},
                                   apply_options(steps[0].step->parameter), blocks);
  ++stats().kernels;
}

StepTimer::Scope WaveExecutor::time_orthogonalize(size_t w, const BatchKey& key, size_t matrices) {
  return time(Stage::kOrthogonalize, w,
              context_.timer.tracing() ? fmt::format("{} x {}x{}", matrices, key.rows, key.columns) : std::string());
}

}  // namespace muster::engine
