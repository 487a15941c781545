#include "memory_check.h"

#include <algorithm>
#include <optional>
#include <string>

#include <fmt/format.h>

#include "kernels/backend_info.h"
#include "kernels/kernels.h"
#include "muster/error.h"
#include "plan_text/text.h"

namespace muster::cli {
namespace {

struct Shortage {
  int64_t need = 0;
  int64_t available = 0;
  std::string where;
};

// What this process's ranks take together, per GPU and on the host. Processes of one machine share both.
class Places {
 public:
  explicit Places(const Ranks& ranks)
      : ranks_(ranks),
        devices_(ranks.cuda() ? static_cast<size_t>(kernels::cuda_devices()) : 0),
        processes_(ranks.comm() == "local" ? 1 : std::max(1, this_process().local_count)) {}

  void add(int32_t rank, run::MemoryNeed need) {
    if (devices_.empty()) {
      host_ += need.device;
    } else {
      const int local = ranks_.comm() == "local" ? rank : this_process().local_rank;
      devices_[static_cast<size_t>(ranks_.device_of(local).index)] += need.device;
    }
    host_ += need.host;
  }

  std::optional<Shortage> shortage() const {
    const auto processes = static_cast<int64_t>(processes_);
    const int64_t host = run::available_memory();
    if (host_ > host / processes) return Shortage{host_ * processes, host, "this machine"};
    for (size_t d = 0; d < devices_.size(); ++d) {
      const auto count = static_cast<int64_t>(devices_.size());
      const int64_t sharing = (processes + count - 1) / count;
      const int64_t free = devices_[d] > 0 ? kernels::cuda_free_bytes(static_cast<int>(d)) : 0;
      if (devices_[d] > free / sharing) return Shortage{devices_[d] * sharing, free, fmt::format("GPU {}", d)};
    }
    return std::nullopt;
  }

 private:
  const Ranks& ranks_;
  std::vector<int64_t> devices_;
  int64_t host_ = 0;
  int processes_;
};

std::optional<Shortage> shortage_without_scratch(const MemoryCheck& check, const run::Workload& workload) {
  const std::vector<int32_t> here = check.ranks.here(workload.problem().ranks);
  Places together(check.ranks);
  for (const int32_t rank : here) together.add(rank, check.held(workload, rank));
  if (std::optional<Shortage> shortage = together.shortage()) return shortage;
  if (!check.alone || here.empty() || here.front() != 0) return std::nullopt;
  Places alone(check.ranks);
  alone.add(0, check.alone(workload));
  return alone.shortage();
}

std::optional<Shortage> shortage_with_scratch(const MemoryCheck& check, const run::Workload& workload) {
  const std::vector<int64_t> scratch = check.scratch(workload.problem());
  Places together(check.ranks);
  for (const int32_t rank : check.ranks.here(workload.problem().ranks)) {
    run::MemoryNeed need = check.held(workload, rank);
    need.device += scratch[static_cast<size_t>(rank)];
    together.add(rank, need);
  }
  return together.shortage();
}

std::optional<Shortage> shortage_of(const MemoryCheck& check, const run::Workload& workload) {
  if (std::optional<Shortage> shortage = shortage_without_scratch(check, workload)) return shortage;
  return shortage_with_scratch(check, workload);
}

// The most layers that fit; 0 if one does not, or if the model has no layers to leave out.
int64_t layers_that_fit(const MemoryCheck& check, size_t parameters) {
  const auto with_layers = [&](int64_t layers) {
    ModelArguments model = check.model;
    model.layers = std::to_string(layers);
    return model.load();
  };
  const auto fits = [&](int64_t layers, auto shortage) {
    const Problem problem = with_layers(layers);
    return !shortage(check, run::Workload(problem)).has_value();
  };
  try {
    constexpr int64_t kMost = 1 << 20;
    int64_t too_many = 1;
    while (too_many < kMost && with_layers(too_many).parameters.size() < parameters) too_many *= 2;
    int64_t most = 0;
    while (too_many - most > 1) {
      const int64_t middle = most + (too_many - most) / 2;
      (fits(middle, shortage_without_scratch) ? most : too_many) = middle;
    }
    while (most > 0 && !fits(most, shortage_with_scratch)) most /= 2;
    return most;
  } catch (const InvalidArgument&) {  // --layers is not for this model, or leaves nothing of it
    return 0;
  }
}

}  // namespace

void require_memory(const MemoryCheck& check, const run::Workload& workload) {
  const std::optional<Shortage> shortage = shortage_of(check, workload);
  if (!shortage) return;
  const Problem& problem = workload.problem();
  const int64_t layers = layers_that_fit(check, problem.parameters.size());
  const std::string remedy =
      layers > 0 ? fmt::format("--layers {} fits", layers) : fmt::format("{} may fit", check.otherwise);
  throw InvalidArgument(fmt::format(
      "{} '{}': {} {} of memory, and {} has {}; {}, and plan and simulate need no memory for the model", check.command,
      problem.model, problem.ranks == 1 ? "1 rank needs" : fmt::format("{} ranks need", problem.ranks),
      plan_text::bytes_text(shortage->need), shortage->where, plan_text::bytes_text(shortage->available), remedy));
}

std::vector<int64_t> plan_scratch(const Problem& problem, const PlanOptions& options) {
  std::vector<int64_t> out(static_cast<size_t>(problem.ranks));
  try {
    const PlanSummary summary = summarize(problem, make_plan(problem, options), options.cost);
    std::ranges::transform(summary.ranks, out.begin(), &PlanSummary::Rank::scratch_bytes);
  } catch (const InvalidArgument&) {  // reported where the plan is used
  }
  return out;
}

}  // namespace muster::cli
