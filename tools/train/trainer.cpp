#include "train/trainer.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "engine/step/step_timer.h"
#include "kernels/bf16.h"
#include "muster/error.h"

namespace muster::train {
namespace {

using engine::now_ns;

constexpr int64_t kHeldOutBatches = 8;

ModelConfig with_vocabulary(ModelConfig model, int64_t vocabulary) {
  model.vocabulary = vocabulary;
  return model;
}

int64_t extra_bytes(WeightForm form) {
  if (form == WeightForm::kBf16Master) return sizeof(float);
  return form == WeightForm::kBf16Mantissa ? sizeof(uint16_t) : 0;
}

}  // namespace

Trainer::Trainer(const Recipe& recipe, const Corpus& corpus, const Execution& execution, Communicator& communicator)
    : recipe_(recipe),
      corpus_(corpus),
      communicator_(communicator),
      model_(with_vocabulary(recipe.model, corpus.vocabulary())),
      map_(map_weights(model_)),
      problem_(make_problem(recipe, map_, execution.axes)),
      shards_(make_shards(problem_, map_)),
      own_(shards_[communicator.rank()]),
      weights_(static_cast<size_t>(own_.elements() * byte_size(recipe.dtype))),
      extra_(static_cast<size_t>(own_.elements() * extra_bytes(recipe.form()))),
      gradients_(static_cast<size_t>(own_.elements())),
      whole_(static_cast<size_t>(map_.elements)),
      gather_(shards_, recipe.dtype, communicator),
      sum_(shards_, recipe.slots, map_.elements, communicator),
      threads_(execution.threads) {
  fill_shard();
  for (size_t p = 0; p < map_.tensors.size(); ++p) {
    gradient_pointers_.push_back(own_.elements(p) > 0 ? gradients_.data() + own_.offsets[p] : nullptr);
  }
  for (int t = 0; t < threads_.threads(); ++t) {
    const Gpt<float>& gpt = passes_.emplace_back(model_, map_, recipe.batch / recipe.slots);
    batches_.emplace_back(static_cast<size_t>(gpt.tokens_in()));
  }
  OptimizerOptions options{.plan = execution.plan, .groups = make_groups(recipe), .threads = execution.threads};
  options.seed = recipe.seed;
  optimizer_ = std::make_unique<Optimizer>(problem_, options, communicator, memory());
}

void Trainer::fill_shard() {
  const std::vector<float> whole = initial_weights(model_, map_, recipe_.seed);
  const WeightForm form = recipe_.form();
  for (const run::Row& row : own_.rows) {
    for (int64_t i = 0; i < row.count; ++i) {
      const float value = whole[static_cast<size_t>(row.first + i)];
      const auto put = [&](std::vector<std::byte>& to, auto part) {
        std::memcpy(to.data() + static_cast<size_t>(row.offset + i) * sizeof part, &part, sizeof part);
      };
      const auto bits = std::bit_cast<uint32_t>(value);
      if (form == WeightForm::kF32) {
        put(weights_, value);
      } else if (form == WeightForm::kBf16Mantissa) {
        put(weights_, static_cast<uint16_t>(bits >> 16));
        put(extra_, static_cast<uint16_t>(bits));
      } else {
        put(weights_, kernels::to_bf16(value));
        if (form == WeightForm::kBf16Master) put(extra_, value);
      }
    }
  }
}

std::vector<ParameterMemory> Trainer::memory() {
  const WeightForm form = recipe_.form();
  std::vector<ParameterMemory> memory;
  for (size_t p = 0; p < map_.tensors.size(); ++p) {
    ParameterMemory& one = memory.emplace_back();
    one.form = form;
    one.group = group_of(problem_.parameters[p]);
    if (own_.elements(p) == 0) continue;
    one.weight = weights_.data() + own_.offsets[p] * byte_size(recipe_.dtype);
    if (!extra_.empty()) one.extra = extra_.data() + own_.offsets[p] * extra_bytes(form);
  }
  return memory;
}

template <typename Visit>
void Trainer::for_each_pass(SlotRange passes, const Visit& visit) {
  threads_.run(passes.size(),
               [&](int64_t i, int thread) { visit(passes.begin + i, passes_[thread], batches_[thread]); });
}

double Trainer::sum_over_ranks(std::vector<double>& values) {
  communicator_.all_reduce(std::span<double>(values), ReduceOp::kSum, "losses")->wait();
  double sum = 0;
  for (const double value : values) sum += value;
  return sum;
}

TrainedStep Trainer::step() {
  const bool trace = std::exchange(trace_, false);
  if (trace) communicator_.barrier("traced step")->wait();
  const int64_t begin = now_ns();
  const int64_t sequences = recipe_.batch / recipe_.slots;
  const auto tokens = static_cast<double>(recipe_.batch * model_.context);
  gather_.run(weights_, whole_);
  const int64_t gathered = now_ns();
  std::vector<double> losses(static_cast<size_t>(recipe_.slots));
  for_each_pass(sum_.own(), [&](int64_t slot, Gpt<float>& gpt, std::span<int32_t> batch) {
    corpus_.draw(recipe_.seed, steps(), slot * sequences, batch);
    const std::span<float> gradients = sum_.gradients(slot);
    std::fill(gradients.begin(), gradients.end(), 0.0F);
    losses[slot] = gpt.loss_and_gradients(whole_, batch, 1 / tokens, gradients);
  });
  const int64_t computed = now_ns();
  const double loss = sum_over_ranks(losses) / tokens;
  if (!std::isfinite(loss)) throw Error(fmt::format("step {}: the loss is {}", steps() + 1, loss));
  sum_.run(gradients_);

  const double share = rate(recipe_.schedule, steps(), recipe_.steps);
  optimizer_->group(0).lr = recipe_.lr * share;
  optimizer_->group(1).lr = recipe_.adamw_lr * share;
  const int64_t before = now_ns();
  optimizer_->step(gradient_pointers_, {.trace = trace});
  const int64_t end = now_ns();
  if (trace) {
    timeline_ = {begin, end, {}};
    timeline_.events.push_back({"gather weights", true, -1, begin, gathered, 0});
    timeline_.events.push_back({"forward and backward", false, -1, gathered, computed, 0});
    timeline_.events.push_back({"sum gradients", true, -1, computed, before, 0});
    const std::vector<TraceEvent> of_optimizer = optimizer_->trace();
    timeline_.events.insert(timeline_.events.end(), of_optimizer.begin(), of_optimizer.end());
  }
  return {loss, end - begin, end - before};
}

double Trainer::held_out_loss() {
  const int64_t sequences = recipe_.batch / recipe_.slots;
  const int64_t count = kHeldOutBatches * recipe_.slots;
  gather_.run(weights_, whole_);
  std::vector<double> losses(static_cast<size_t>(count));
  const SlotRange own = slots_of(count, communicator_.rank(), communicator_.size());
  for_each_pass(own, [&](int64_t pass, Gpt<float>& gpt, std::span<int32_t> batch) {
    corpus_.held_out(count * sequences, pass * sequences, batch);
    losses[pass] = gpt.loss(whole_, batch);
  });
  return sum_over_ranks(losses) / static_cast<double>(count * sequences * model_.context);
}

}  // namespace muster::train
