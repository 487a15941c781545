// Calls the caller's rules: from updates in wire dtype to f32 and back.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include <fmt/format.h>

#include "base/alignment.h"
#include "engine/step/wave_executor.h"
#include "kernels/bf16.h"
#include "muster/error.h"

namespace muster::engine {

namespace {

constexpr int64_t kAlign = DeviceBuffer::kAlign;

int64_t value_bytes(const BatchKey& key, int64_t matrices) {
  return base::round_up(matrices * key.rows * key.columns * static_cast<int64_t>(sizeof(float)), kAlign);
}

void load_f32(Dtype from, const std::byte* data, std::span<float> values) {
  if (from == Dtype::kF32) {
    std::memcpy(values.data(), data, values.size_bytes());
    return;
  }
  const auto* const halves = reinterpret_cast<const uint16_t*>(data);
  for (size_t i = 0; i < values.size(); ++i) values[i] = kernels::from_bf16(halves[i]);
}

void store_f32(Dtype to, std::span<const float> values, std::byte* data) {
  if (to == Dtype::kF32) {
    std::memcpy(data, values.data(), values.size_bytes());
    return;
  }
  constexpr uint16_t kNan = 0x7fc0;
  auto* const halves = reinterpret_cast<uint16_t*>(data);
  for (size_t i = 0; i < values.size(); ++i) halves[i] = std::isnan(values[i]) ? kNan : kernels::to_bf16(values[i]);
}

}  // namespace

int64_t WaveExecutor::best_batch_size(const BatchKey& key) const {
  if (!key.rule) return kernels_.best_batch_size({key.rows, key.columns});
  return context_.rules[static_cast<size_t>(key.group)]->batched() ? std::numeric_limits<int64_t>::max() : 1;
}

int64_t WaveExecutor::kernel_workspace(const BatchKey& key, int64_t matrices) const {
  if (!key.rule) return kernels_.orthogonalize_workspace({key.rows, key.columns}, matrices, orthogonalize_options(key));
  const Rule& rule = *context_.rules[static_cast<size_t>(key.group)];
  return value_bytes(key, matrices) + rule.workspace_bytes(key.rows, key.columns, matrices);
}

void WaveExecutor::run_rule(size_t w, const BatchKey& key, std::span<const RuleMatrix> matrices,
                            const kernels::Workspace& workspace) {
  const auto timed = time_orthogonalize(w, key, matrices.size());
  const RuleStateLayout layout =
      rule_state_layout(context_.state.rule_entries(matrices[0].parameter), key.rows, key.columns);
  const auto sits_out = [&](const RuleMatrix& m) {
    const int32_t* const flag = active(m.parameter);
    return flag != nullptr && *flag == 0;
  };
  for (size_t begin = 0; begin < matrices.size();) {
    size_t end = begin + 1;
    if (!sits_out(matrices[begin])) {
      while (end < matrices.size() && !sits_out(matrices[end]) &&
             matrices[end].state == matrices[end - 1].state + layout.elements) {
        ++end;
      }
      call_rule(key, matrices.subspan(begin, end - begin), workspace);
    }
    begin = end;
  }
  poll();
}

// An error is kept for the end of the step, so that no rank waits for this one.
void WaveExecutor::call_rule(const BatchKey& key, std::span<const RuleMatrix> matrices,
                             const kernels::Workspace& workspace) {
  const Dtype wire = context_.problem.wire;
  const auto elements = static_cast<size_t>(key.rows * key.columns);
  const auto count = static_cast<int64_t>(matrices.size());
  const std::span<float> values{reinterpret_cast<float*>(workspace.data), elements * matrices.size()};
  for (size_t i = 0; i < matrices.size(); ++i) {
    load_f32(wire, matrices[i].update, values.subspan(i * elements, elements));
  }
  const std::vector<RuleState>& entries = context_.state.rule_entries(matrices[0].parameter);
  const RuleStateLayout layout = rule_state_layout(entries, key.rows, key.columns);
  std::vector<RuleBatch::State> state;
  for (const int64_t first : layout.first) state.push_back({matrices[0].state + first, layout.elements});
  Rule& rule = *context_.rules[static_cast<size_t>(key.group)];
  const auto failed = [&](std::string_view why) {
    rule_error_ = {std::current_exception(),
                   fmt::format("rule '{}' on '{}': {}", rule.name(), parameter(matrices[0].parameter).name, why)};
  };
  if (rule_error_.original == nullptr) {
    try {
      rule.update({.count = count,
                   .rows = key.rows,
                   .columns = key.columns,
                   .updates = values.data(),
                   .state = state,
                   .workspace = reinterpret_cast<std::byte*>(workspace.data) + value_bytes(key, count),
                   .group = step_.groups[key.group],
                   .group_index = key.group,
                   .step = step_.number});
      ++stats().kernels;
      check_result(matrices, values);
    } catch (const std::exception& error) {
      failed(error.what());
    } catch (...) {
      failed("an exception that is no std::exception");
    }
  }
  if (rule_error_.original != nullptr) std::ranges::fill(values, 0.0F);
  for (size_t i = 0; i < matrices.size(); ++i) {
    store_f32(wire, values.subspan(i * elements, elements), matrices[i].update);
  }
}

// By the policy for gradients, except that a step under way cannot be skipped: the matrix's update is zero instead.
void WaveExecutor::check_result(std::span<const RuleMatrix> matrices, std::span<float> values) {
  if (step_.non_finite == NonFinite::kIgnore) return;
  const size_t elements = values.size() / matrices.size();
  for (size_t i = 0; i < matrices.size(); ++i) {
    const std::span<float> mine = values.subspan(i * elements, elements);
    if (std::ranges::all_of(mine, [](float v) { return std::isfinite(v); })) continue;
    if (step_.non_finite == NonFinite::kError) {
      throw Error(fmt::format("it returned NaN or infinity for parameter '{}'", parameter(matrices[i].parameter).name));
    }
    const bool all = step_.non_finite == NonFinite::kSkipStep;
    for (float& v : mine) v = all || !std::isfinite(v) ? 0.0F : v;
  }
}

}  // namespace muster::engine
