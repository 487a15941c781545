#include "run/bench.h"

#include <algorithm>
#include <memory>
#include <numeric>

#include "backends.h"
#include "engine/step/step_timer.h"
#include "plan/catalog.h"
#include "plan/exchange.h"

namespace muster::run {
namespace {

using engine::now_ns;

constexpr int64_t kAwakeNs = 1'000'000;  // a host that trains is; one that has waited for a device is not

// One plan with its own weights.
class Contestant {
 public:
  Contestant(const Workload& workload, Communicator& communicator, const PlanOptions& plan, const BenchOptions& bench,
             kernels::Kernels& kernels)
      : communicator_(communicator),
        device_(bench.device.kind != Device::Kind::kCpu),
        weights_(workload, communicator.rank(), kernels) {
    OptimizerOptions options;
    options.plan = plan;
    options.groups = workload.groups();
    options.threads = bench.threads;
    options.device = bench.device;
    options.graph = bench.graph;
    communicator_.barrier("bench")->wait();
    const int64_t begin = now_ns();
    optimizer_ = std::make_unique<Optimizer>(workload.problem(), options, communicator, weights_.memory());
    result_.setup_ns = now_ns() - begin;
    const PlanSummary summary = summarize(workload.problem(), optimizer_->plan(), plan.cost);
    result_.waves = std::ssize(optimizer_->plan().waves);
    result_.in_flight = optimizer_->plan().in_flight;
    count_transfers();
    result_.collectives = summary.collectives;
    result_.scratch_cap = optimizer_->plan().scratch_cap;
    result_.scratch_cap_raised = optimizer_->plan().scratch_cap_raised;
    result_.padding_bytes = summary.padding_bytes;
    result_.predicted_ns = summary.predicted_ns;
  }

  // Alone: all ranks begin together, and nothing is under way before or after.
  void step(std::span<void* const> gradients, int64_t index, const StepOptions& options = {}) {
    set_rates(index);
    communicator_.barrier("bench")->wait();
    begin_ns_ = now_ns();
    for (const int64_t awake = begin_ns_ + (device_ ? kAwakeNs : 0); begin_ns_ < awake;) begin_ns_ = now_ns();
    optimizer_->step(gradients, options);
    returned_ns_ = now_ns();
    optimizer_->synchronize();
    end_ns_ = now_ns();
    if (index == 0) result_.first_step_ns = end_ns_ - begin_ns_;
  }

  // Keeps what the last step took.
  void record() {
    const StepStats& stats = optimizer_->last_step();
    const int64_t inside = std::accumulate(stats.stage_ns.begin(), stats.stage_ns.end(), int64_t{0});
    result_.step_ns.push_back(end_ns_ - begin_ns_);
    result_.host_ns.push_back(device_ ? returned_ns_ - begin_ns_ : stats.total_ns - inside);
    for (size_t s = 0; s < stats.stage_ns.size(); ++s) result_.stage_ns[s] += stats.stage_ns[s];
    result_.messages = stats.messages_sent;
    result_.bytes_sent_max = stats.bytes_sent;
    result_.kernels = stats.kernels;
  }

  // Steps index to index + count - 1.
  void steady(std::span<void* const> gradients, int64_t index, int64_t count) {
    communicator_.barrier("bench")->wait();
    const int64_t begin = now_ns();
    for (int64_t i = index; i < index + count; ++i) {
      set_rates(i);
      optimizer_->step(gradients);
    }
    optimizer_->synchronize();
    result_.steady_ns = (now_ns() - begin) / count;
  }

  void trace(std::span<void* const> gradients, int64_t index) {
    step(gradients, index, {.trace = true});
    result_.timelines = gather_timelines(communicator_, {begin_ns_, end_ns_, optimizer_->trace()});
  }

  // Sums over all ranks.
  BenchResult result(const Contestant& first) {
    int64_t equal = 1;
    for (int32_t p = 0; p < static_cast<int32_t>(optimizer_->problem().parameters.size()); ++p) {
      if (weights_.shard(p) != first.weights_.shard(p)) equal = 0;
    }
    std::vector<int64_t> most{
        result_.bytes_sent_max, result_.kernels,  optimizer_->scratch_bytes(), -equal,
        result_.first_step_ns,  result_.setup_ns, result_.steady_ns,           result_.exchanges_max,
        result_.transfers_max};
    const auto times = std::ssize(most);
    most.insert(most.end(), result_.step_ns.begin(), result_.step_ns.end());
    most.insert(most.end(), result_.host_ns.begin(), result_.host_ns.end());
    communicator_.all_reduce(std::span<int64_t>(most), ReduceOp::kMax, "bench maxima")->wait();
    std::vector<int64_t> sums{result_.messages};
    sums.insert(sums.end(), result_.stage_ns.begin(), result_.stage_ns.end());
    communicator_.all_reduce(std::span<int64_t>(sums), ReduceOp::kSum, "bench sums")->wait();

    const auto steps = std::ssize(result_.step_ns);
    result_.bytes_sent_max = most[0];
    result_.kernels = most[1];
    result_.scratch_bytes_max = most[2];
    result_.bitwise_equal = most[3] == -1;
    result_.first_step_ns = most[4];
    result_.setup_ns = most[5];
    result_.steady_ns = most[6];
    result_.exchanges_max = most[7];
    result_.transfers_max = most[8];
    std::copy_n(most.begin() + times, steps, result_.step_ns.begin());
    std::copy_n(most.begin() + times + steps, steps, result_.host_ns.begin());
    result_.messages = sums[0];
    for (size_t s = 0; s < result_.stage_ns.size(); ++s) {
      result_.stage_ns[s] = sums[s + 1] / std::max<int64_t>(1, steps * communicator_.size());
    }
    return std::move(result_);
  }

 private:
  // Counts of this rank, as its program has them.
  void count_transfers() {
    const plan::Catalog catalog(optimizer_->problem());
    const Plan& plan = optimizer_->plan();
    for (int32_t wave = 0; wave < static_cast<int32_t>(plan.waves.size()); ++wave) {
      for (const plan::Exchange& exchange : {plan::exchange_in(catalog, plan, communicator_.rank(), wave),
                                             plan::exchange_out(catalog, plan, communicator_.rank(), wave)}) {
        const int64_t transfers = std::ssize(exchange.sends) + std::ssize(exchange.receives);
        result_.transfers_max += transfers;
        result_.exchanges_max += transfers > 0;
      }
    }
  }

  void set_rates(int64_t index) {
    for (int32_t g = 0; g < optimizer_->groups(); ++g) optimizer_->group(g).lr = workload_lr(g, index);
  }

  Communicator& communicator_;
  const bool device_;  // whose calls return early
  Weights weights_;
  std::unique_ptr<Optimizer> optimizer_;
  BenchResult result_;
  int64_t begin_ns_ = 0;  // of the last step
  int64_t returned_ns_ = 0;
  int64_t end_ns_ = 0;
};

}  // namespace

int64_t median(std::vector<int64_t> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + (std::ssize(values) - 1) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::vector<BenchResult> bench(const Workload& workload, Communicator& communicator, std::span<const PlanOptions> cases,
                               const BenchOptions& options) {
  const std::unique_ptr<kernels::Kernels> kernels = make_kernels(options.device, 1);  // for their memory
  std::vector<std::unique_ptr<Contestant>> contestants;
  for (const PlanOptions& plan : cases) {
    contestants.push_back(std::make_unique<Contestant>(workload, communicator, plan, options, *kernels));
  }
  Gradients made(workload, communicator.rank(), *kernels, 1);
  const std::span<void* const> gradients = made.at(0);  // where they are, as in training
  const int64_t alone = options.warmup + options.steps;
  const int64_t steps = alone + options.steady + (options.trace ? 1 : 0);
  double done = 0;
  // Another one begins every time.
  const auto in_turn = [&](int64_t step, int64_t count, auto visit) {
    for (size_t i = 0; i < contestants.size(); ++i) {
      const size_t next = (i + static_cast<size_t>(step)) % contestants.size();
      options.progress(done / static_cast<double>(steps * std::ssize(contestants)), next);
      visit(*contestants[next]);
      done += static_cast<double>(count);
    }
  };
  for (int64_t step = 0; step < alone; ++step) {
    in_turn(step, 1, [&](Contestant& contestant) {
      contestant.step(gradients, step);
      if (step >= options.warmup) contestant.record();
    });
  }
  if (options.steady > 0) {
    in_turn(0, options.steady, [&](Contestant& contestant) { contestant.steady(gradients, alone, options.steady); });
  }
  if (options.trace) {
    in_turn(0, 1, [&](Contestant& contestant) { contestant.trace(gradients, alone + options.steady); });
  }
  std::vector<BenchResult> results;
  for (const auto& contestant : contestants) results.push_back(contestant->result(*contestants.front()));
  return results;
}

}  // namespace muster::run
