#include "support/random_training.h"

namespace muster::test {

Training random_training(uint64_t seed, const RandomCase& c) {
  Training t;
  t.problem = c.problem;
  t.options.plan = c.options;
  t.options.groups.resize(2);
  t.options.groups[1].every = 1 + static_cast<int64_t>(seed % 3);
  constexpr const char* kSets[] = {"jordan", "aol4", "polar_express_tight", "capped4"};
  t.options.groups[1].coefficients = coefficients(kSets[seed / 2 % 4]);
  t.options.groups[1].momentum_form = seed % 4 == 0 ? MomentumForm::kSum : MomentumForm::kEma;
  t.options.momentum = seed % 5 == 0 ? Dtype::kBf16 : Dtype::kF32;
  t.options.threads = seed % 11 == 0 ? 2 : 1;
  t.options.seed = seed;
  const bool sync = c.problem.grad_sync;
  t.gradient = [sync](int32_t rank, size_t p, int64_t element, int step) {
    const uint64_t whose = sync ? 1000 * static_cast<uint64_t>(rank) : 0;
    return made_up(p, element, 100 + static_cast<uint64_t>(step) + whose);
  };
  t.group = [seed](size_t p) { return static_cast<int32_t>((p + seed) % 2); };
  t.form = [seed](size_t p) {
    constexpr WeightForm kForms[] = {WeightForm::kBf16, WeightForm::kBf16Master, WeightForm::kBf16Mantissa,
                                     WeightForm::kBf16Stochastic};
    return kForms[(p / 2 + seed) % 4];
  };
  t.before_step = [](Optimizer& optimizer, int step) {
    for (int32_t g = 0; g < optimizer.groups(); ++g) {
      optimizer.group(g).lr = 0.02 / (1 + step);
      optimizer.group(g).weight_decay = 0.1;
      optimizer.group(g).decay = (step + g) % 2 == 0 ? Decay::kCautious : Decay::kPlain;
    }
  };
  if (seed % 3 == 0) {
    t.step_options = [](int) {
      StepOptions options;
      options.max_grad_norm = 0.5;
      options.parameter_stats = true;
      return options;
    };
  }
  if (seed % 4 == 1) {
    // Some parameters have no gradient anywhere, some shards have none.
    std::vector<std::vector<int64_t>> first(c.problem.ranks);
    for (int32_t r = 0; r < c.problem.ranks; ++r) {
      for (const auto& elements : held_elements(c.problem, r)) {
        first[r].push_back(elements.empty() ? -1 : elements[0]);
      }
    }
    t.present = [first, sync](int32_t rank, size_t p, int step) {
      const auto salt = static_cast<uint64_t>(step) + 7;
      if (made_up(p, 0, salt) < -0.5F) return false;
      return made_up(p, sync ? rank : first[rank][p], salt + 1000) > -0.5F;
    };
  }
  return t;
}

}  // namespace muster::test
