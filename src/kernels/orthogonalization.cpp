// The public function of include/muster/orthogonalize.h: checks, scratch and threads around one call of kernels.
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <vector>

#include <fmt/format.h>

#include "base/alignment.h"
#include "base/offset_pointer.h"
#include "base/text.h"
#include "kernels/kernels.h"
#include "muster/error.h"
#include "muster/orthogonalize.h"

namespace muster {

namespace {

constexpr int64_t kCpuAlign = 64;

void check(const Orthogonalization& call) {
  constexpr double kMostElements = 1e15;  // no memory holds as many; products of sizes fit into 64 bits below
  validate(call.coefficients);
  if (call.dtype == Dtype::kF16) base::fail("orthogonalize: dtype f16: expected f32 or bf16");
  const auto at_least_0 = [](const char* field, int64_t value) {
    if (value < 0) base::fail("orthogonalize: {} {}: expected at least 0", field, value);
  };
  at_least_0("count", call.count);
  at_least_0("rows", call.rows);
  at_least_0("columns", call.columns);
  const auto count = static_cast<double>(call.count);
  if (count * static_cast<double>(call.rows) * static_cast<double>(call.columns) > kMostElements) {
    base::fail("orthogonalize: {} matrices of {}x{}: too many elements", call.count, call.rows, call.columns);
  }
  if (call.device.kind == Device::Kind::kCpu && call.threads < 1) {
    base::fail("orthogonalize: threads {}: expected at least 1", call.threads);
  }
}

bool has_elements(const Orthogonalization& call) { return call.count > 0 && call.rows > 0 && call.columns > 0; }

kernels::CudaOptions place_of(const Orthogonalization& call) {
  return {.device = call.device.index, .stream = call.device.stream.value_or(nullptr)};
}

// Starting a thread takes as long as 1e6 FLOPs, so each gets at least ten times as many.
int useful_threads(const Orthogonalization& call) {
  constexpr double kLeastFlops = 1e7;
  const auto longer = static_cast<double>(std::max(call.rows, call.columns));
  const auto shorter = static_cast<double>(std::min(call.rows, call.columns));
  const auto products = static_cast<double>(3 * call.coefficients.steps.size());
  const double flops = static_cast<double>(call.count) * products * 2 * longer * shorter * shorter;
  return static_cast<int>(std::clamp(flops / kLeastFlops, 1.0, static_cast<double>(call.threads)));
}

struct Free {
  void operator()(void* data) const { std::free(data); }
};

void run_on_cpu(const Orthogonalization& call, kernels::OrthogonalizeBatch batch) {
  const auto kernels = kernels::make_cpu_kernels({useful_threads(call)});
  const int64_t least = kernels->orthogonalize_workspace(batch.shape, 1, batch.options);
  const int64_t most = kernels->orthogonalize_workspace(batch.shape, call.count, batch.options);
  const int64_t bytes = base::round_up(std::max(least, std::min(most, kernels->largest_workspace())), kCpuAlign);
  const std::unique_ptr<void, Free> scratch(std::aligned_alloc(kCpuAlign, static_cast<size_t>(bytes)));
  if (scratch == nullptr) throw ResourceError(fmt::format("orthogonalize: no memory for {} bytes", bytes));
  batch.workspace = {scratch.get(), bytes};
  kernels->orthogonalize(batch);
}

kernels::OrthogonalizeBatch batch_of(const Orthogonalization& call) {
  return {.options = {.coefficients = call.coefficients, .wire = call.dtype}, .shape = {call.rows, call.columns}};
}

}  // namespace

int64_t orthogonalize_workspace(const Orthogonalization& call) {
  check(call);
  if (!has_elements(call) || call.device.kind == Device::Kind::kCpu) return 0;
  return kernels::cuda_orthogonalize_workspace(batch_of(call), call.count, place_of(call));
}

void orthogonalize(const Orthogonalization& call) {
  check(call);
  if (!has_elements(call)) return;
  if (call.matrices == nullptr) {
    base::fail("orthogonalize: matrices null: expected {} matrices of {}x{}", call.count, call.rows, call.columns);
  }
  std::vector<kernels::UpdateMatrix> matrices(static_cast<size_t>(call.count));
  for (int64_t i = 0; i < call.count; ++i) {
    matrices[static_cast<size_t>(i)].matrix =
        base::offset_by(call.matrices, i * call.rows * call.columns, byte_size(call.dtype));
  }
  kernels::OrthogonalizeBatch batch = batch_of(call);
  batch.matrices = matrices;
  if (call.device.kind == Device::Kind::kCpu) return run_on_cpu(call, batch);
  const kernels::CudaOptions place = place_of(call);
  batch.workspace = {call.workspace, kernels::cuda_orthogonalize_workspace(batch, call.count, place)};
  kernels::cuda_orthogonalize(batch, place);
}

}  // namespace muster
