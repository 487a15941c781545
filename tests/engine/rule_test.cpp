// Rules of the caller on whole matrices: where they are called, with what, and what their errors do.
#include "muster/rule.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/kernels.h"
#include "muster/error.h"
#include "support/overlapped.h"
#include "support/problems.h"
#include "support/random_training.h"
#include "support/run_ranks.h"

namespace muster {
namespace {

using testing::Each;
using testing::HasSubstr;

// All ranks of a test share it: it keeps nothing of its own.
class FunctionRule : public Rule {
 public:
  std::string name() const override { return "test"; }
  std::vector<RuleState> state() const override { return entries; }
  bool own_momentum() const override { return own; }
  bool batched() const override { return many; }
  int64_t workspace_bytes(int64_t rows, int64_t columns, int64_t count) const override {
    return scratch ? scratch(rows, columns, count) : 0;
  }
  void update(const RuleBatch& batch) override { work(batch); }

  std::vector<RuleState> entries{};
  bool own = false;
  bool many = false;
  std::function<int64_t(int64_t, int64_t, int64_t)> scratch{};
  std::function<void(const RuleBatch&)> work = [](const RuleBatch&) {};
};

std::shared_ptr<FunctionRule> rule_of(std::function<void(const RuleBatch&)> work) {
  auto rule = std::make_shared<FunctionRule>();
  rule->work = std::move(work);
  return rule;
}

// Uses every shape of state, its workspace, the hyperparameters and the step, matrix by matrix.
void mix_everything(const RuleBatch& b) {
  const int64_t n = b.rows * b.columns;
  for (int64_t m = 0; m < b.count; ++m) {
    float* const u = b.updates + m * n;
    const auto entry = [&](size_t e) { return b.state[e].data + m * b.state[e].stride; };
    float* const copy = static_cast<float*>(b.workspace) + m * n;
    for (int64_t i = 0; i < n; ++i) {
      copy[i] = u[i];
      entry(2)[i] += 0.5F * u[i];
    }
    const auto rest = static_cast<float>(1 - b.group.beta2);
    for (int64_t i = 0; i < b.rows; ++i) {
      for (int64_t k = 0; k < b.rows; ++k) {
        float sum = 0;
        for (int64_t j = 0; j < b.columns; ++j) sum += copy[i * b.columns + j] * copy[k * b.columns + j];
        entry(3)[i * b.rows + k] += rest * (sum - entry(3)[i * b.rows + k]);
      }
      for (int64_t j = 0; j < b.columns; ++j) entry(0)[i] += rest * copy[i * b.columns + j] * copy[i * b.columns + j];
    }
    for (int64_t j = 0; j < b.columns; ++j) {
      for (int64_t i = 0; i < b.rows; ++i) entry(1)[j] += std::abs(copy[i * b.columns + j]);
      for (int64_t k = 0; k < b.columns; ++k) entry(4)[j * b.columns + k] += copy[j] * entry(1)[k];
    }
    for (int64_t i = 0; i < n; ++i) {
      u[i] = (copy[i] + 0.25F * entry(2)[i]) / (1 + std::sqrt(entry(0)[i / b.columns]) + entry(1)[i % b.columns]) +
             0.01F * entry(3)[i / b.columns] + 0.01F * entry(4)[i % b.columns] / static_cast<float>(b.step);
    }
  }
}

std::shared_ptr<FunctionRule> mixing_rule() {
  auto rule = rule_of(mix_everything);
  rule->entries = {{"rows", RuleStateShape::kRows},
                   {"columns", RuleStateShape::kColumns},
                   {"whole", RuleStateShape::kMatrix},
                   {"left", RuleStateShape::kRowsByRows},
                   {"right", RuleStateShape::kColumnsByColumns}};
  rule->scratch = [](int64_t rows, int64_t columns, int64_t count) { return 4 * rows * columns * count; };
  return rule;
}

// Rules in place of Muon and NorMuon.
void use_rules(Problem& problem) {
  for (Parameter& p : problem.parameters) {
    if (!is_matrix_algorithm(p.algorithm)) continue;
    p.algorithm = Algorithm::kRule;
    for (std::vector<Block>* blocks : {&p.matrices.rows, &p.matrices.columns}) {
      for (Block& block : *blocks) block.normuon.reset();
    }
  }
}

test::RandomCase random_case(uint64_t seed) {
  test::RandomCase c = test::random_case(seed);
  use_rules(c.problem);
  c.options.strategy = Strategy::kGlobal;
  c.problem.group_sizes.clear();
  return c;
}

// The first rule takes batches, and its group has momentum of the engine; the second has its own.
void add_rules(test::Training& t) {
  const auto batched = mixing_rule();
  batched->many = true;
  const auto own = mixing_rule();
  own->own = true;
  t.options.rules = {batched, own};
}

bool check(uint64_t seed, const test::RandomCase& c) {
  test::Training many = test::random_training(seed, c);
  add_rules(many);
  std::vector<int64_t> scratch(c.problem.ranks);
  std::vector<int64_t> cap(c.problem.ranks);
  many.measure = [&](int32_t rank, const Optimizer& optimizer) {
    scratch[rank] = optimizer.scratch_bytes();
    cap[rank] = optimizer.plan().scratch_cap;
  };
  const std::vector<test::RankMemory> ranks = test::train(many);
  if (ranks[0].code == ErrorCode::kScratchCapTooSmall || ranks[0].error.find("scratch") != std::string::npos) {
    return false;
  }
  for (int32_t r = 0; r < c.problem.ranks; ++r) {
    if (cap[r] == 0) continue;
    EXPECT_LE(scratch[r], cap[r]) << "seed " << seed << ", rank " << r;
  }
  const test::RankMemory one = test::train(test::on_one_rank(many))[0];
  EXPECT_EQ(test::difference(c.problem, ranks, one), "") << "seed " << seed;
  return true;
}

TEST(Rule, OnManyRanksGivesTheBitsOfOne) {
  int planned = 0;
  for (uint64_t seed = 0; seed < 150; ++seed) {
    test::RandomCase c = random_case(seed);
    if (c.problem.ranks > 10) continue;
    if (seed % 2 == 1) c = test::with_held_state(std::move(c), seed);
    planned += check(seed, c);
    if (HasFailure()) return;
  }
  EXPECT_GT(planned, 80);
}

TEST(Rule, OfReplicasGivesTheBitsOfOneRank) {
  int planned = 0;
  for (uint64_t seed = 0; seed < 150; ++seed) {
    test::RandomCase c = random_case(seed);
    if (c.problem.ranks > 4) continue;
    c = test::in_replicas(std::move(c), 2 + static_cast<int32_t>(seed % 2));
    if (seed % 3 == 0) c = test::with_held_state(std::move(c), seed);
    planned += check(seed, c);
    if (HasFailure()) return;
  }
  EXPECT_GT(planned, 20);
}

TEST(Rule, WithOverlapGivesTheSameBits) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const test::RandomCase c = random_case(seed);
    if (c.problem.ranks > 6) continue;
    test::Training early = test::random_overlap(seed, c);
    add_rules(early);
    const test::RankMemory one = test::train(test::on_one_rank(test::without_overlap(early)))[0];
    EXPECT_EQ(test::difference(c.problem, test::train(early), one), "") << "seed " << seed;
    if (HasFailure()) return;
  }
}

// The rule that orthogonalizes as the engine does is Muon.
TEST(Rule, ThatOrthogonalizesHasTheBitsOfMuon) {
  for (const Dtype wire : {Dtype::kBf16, Dtype::kF32}) {
    test::Training muon = test::training(test::two_parameters(3, Algorithm::kMuon));
    muon.problem.wire = wire;
    muon.problem.parameters[0].algorithm = Algorithm::kMuon;
    test::Training rule = muon;
    use_rules(rule.problem);
    rule.options.rules = {rule_of([wire](const RuleBatch& b) {
      const auto kernels = kernels::make_cpu_kernels({});
      const auto n = static_cast<size_t>(b.rows * b.columns);
      const auto width = static_cast<size_t>(byte_size(wire));
      std::vector<std::byte> matrix(n * width);
      for (size_t i = 0; i < n; ++i) test::store(wire, b.updates[i], matrix.data() + i * width);
      const kernels::UpdateMatrix one{.matrix = matrix.data()};
      const kernels::OrthogonalizeOptions options{b.group.coefficients, wire, {}};
      const int64_t bytes = kernels->orthogonalize_workspace({b.rows, b.columns}, 1, options);
      void* const workspace = kernels->allocate(bytes);
      kernels->orthogonalize({options, {b.rows, b.columns}, {&one, 1}, {workspace, bytes}});
      kernels->release(workspace);
      for (size_t i = 0; i < n; ++i) {
        uint32_t bits = 0;
        std::memcpy(&bits, matrix.data() + i * width, width);
        b.updates[i] = std::bit_cast<float>(wire == Dtype::kF32 ? bits : bits << 16);
      }
    })};
    const test::RankMemory one = test::train(test::on_one_rank(muon))[0];
    EXPECT_EQ(test::difference(muon.problem, test::train(rule), one), "");
  }
}

TEST(Rule, GetsTheGradientIfItHasMomentumOfItsOwn) {
  test::Training t = test::training(test::one_parameter({4, 3}, 2));
  use_rules(t.problem);
  t.problem.wire = Dtype::kF32;
  auto rule = rule_of([](const RuleBatch& b) {
    if (b.updates[0] != test::made_up(0, 0, 100 + static_cast<uint64_t>(b.step) - 1)) return;
    b.state[0].data[0] += 1;
  });
  rule->own = true;
  rule->entries = {{"seen", RuleStateShape::kRows}};
  t.options.rules = {rule};
  for (const test::RankMemory& rank : test::train(t)) {
    ASSERT_EQ(rank.error, "");
    for (const StateTensor& tensor : rank.state) {
      EXPECT_NE(tensor.name, "w:momentum");
      if (tensor.name != "w:rule.seen") continue;
      float seen = 0;
      std::memcpy(&seen, tensor.data.data(), sizeof seen);
      EXPECT_EQ(seen, 3);
      EXPECT_EQ(tensor.shape, Shape{4});
    }
  }
}

// On 4 replicas, each of which could orthogonalize for itself.
TEST(Rule, HasOneOwnerAmongReplicas) {
  test::Training t = test::training(test::one_parameter({3, 8, 6}, 4));
  use_rules(t.problem);
  test::replicate(t.problem);
  t.options.plan.cost.inter_node_mbps = 10;
  t.options.plan.cost.ranks_per_node = 1;
  std::atomic<int> calls = 0;
  t.options.rules = {rule_of([&](const RuleBatch& b) {
    EXPECT_EQ(b.count, 1);
    ++calls;
  })};
  const auto repeats = [](const Plan& plan) {
    return std::ranges::any_of(plan.each_replica, [](bool each) { return each; });
  };
  Problem muon = t.problem;
  muon.parameters[0].algorithm = Algorithm::kMuon;
  EXPECT_TRUE(repeats(make_plan(muon, t.options.plan)));
  t.measure = [&](int32_t, const Optimizer& optimizer) { EXPECT_FALSE(repeats(optimizer.plan())); };
  t.steps = 0;
  EXPECT_THAT(test::errors(test::train(t)), Each(""));
  const int tried = calls;
  t.steps = 2;
  EXPECT_THAT(test::errors(test::train(t)), Each(""));
  EXPECT_EQ(calls - 2 * tried, 2 * 3);
}

TEST(Rule, GetsSeveralMatricesOnlyIfItIsBatched) {
  for (const bool batched : {false, true}) {
    test::Training t = test::training(test::one_parameter({5, 8, 6}, 1));
    use_rules(t.problem);
    std::atomic<int64_t> most = 0;
    auto rule = rule_of([&](const RuleBatch& b) {
      most = std::max<int64_t>(most, b.count);
      EXPECT_GE(b.state[0].stride, 8);
      mix_everything(b);
    });
    const auto mixing = mixing_rule();
    rule->entries = mixing->entries;
    rule->scratch = mixing->scratch;
    rule->many = batched;
    t.options.rules = {rule};
    EXPECT_THAT(test::errors(test::train(t)), Each(""));
    EXPECT_EQ(most, batched ? 5 : 1);
  }
}

TEST(Rule, ResumesOnAnotherNumberOfRanks) {
  const std::filesystem::path directory =
      std::filesystem::path(testing::TempDir()) / ("muster-rule-" + std::to_string(::getpid()));
  std::filesystem::remove_all(directory);
  const auto training = [](int32_t ranks, int first, int steps) {
    test::Training t = test::training(test::one_parameter({3, 8, 6}, ranks));
    t.problem.parameters.push_back(t.problem.parameters[0]);
    t.problem.parameters[1].name = "qkv";
    t.problem.parameters[1].shape = {14, 6};
    t.problem.parameters[1].matrices.rows = {{6, {}, {}}, {8, {}, {}}};
    t.problem.parameters[1].layout.placements = {Placement::shard(ranks == 3 ? 1 : 0)};
    use_rules(t.problem);
    t.options.rules = {mixing_rule()};
    t.steps = steps;
    t.gradient = [first](int32_t, size_t p, int64_t element, int step) {
      return test::made_up(p, element, 100 + static_cast<uint64_t>(first + step));
    };
    return t;
  };
  test::Training before = training(4, 0, 2);
  before.after = [&](Optimizer& optimizer) { optimizer.save(directory); };
  EXPECT_THAT(test::errors(test::train(before)), Each(""));
  test::Training after = training(3, 2, 2);
  after.before = [&](Optimizer& optimizer) { optimizer.load(directory); };
  const test::RankMemory whole = test::train(test::on_one_rank(training(4, 0, 4)))[0];
  EXPECT_EQ(test::difference(after.problem, test::train(after), whole), "");
  std::filesystem::remove_all(directory);
}

struct Broken : std::exception {
  const char* what() const noexcept override { return "not today"; }
};

TEST(Rule, ThatThrowsBreaksTheStepOffOnAllRanks) {
  for (const bool overlap : {false, true}) {
    test::Training t = test::training(test::two_parameters(3, Algorithm::kMuon));
    t.problem.parameters[1].algorithm = Algorithm::kMuon;
    t.problem.parameters[0].algorithm = Algorithm::kRule;
    t.options.overlap = overlap;
    t.options.rules = {rule_of([](const RuleBatch& b) {
      if (b.step == 2) throw Broken();
    })};
    std::atomic<int> failed = 0;
    t.failed = [&](Optimizer& optimizer, const std::string&) {
      EXPECT_THROW(optimizer.step(std::vector<void*>(2)), CommError);
      EXPECT_THROW(optimizer.export_state("w:weight"), CommError);
      std::vector<StateTensor> zeros;
      for (const StateInfo& info : optimizer.state()) {
        zeros.push_back(
            {info, std::vector<std::byte>(static_cast<size_t>(element_count(info.shape) * byte_size(info.type)))});
      }
      optimizer.import_state(zeros);
      EXPECT_NO_THROW(optimizer.export_state("w:weight"));
      ++failed;
    };
    const std::vector<std::string> said = test::errors(test::train(t));
    EXPECT_EQ(failed, 3);
    EXPECT_EQ(std::ranges::count(said, "not today"), 1);
    for (const std::string& text : said) {
      if (text == "not today") continue;
      EXPECT_THAT(text, testing::MatchesRegex("step 2 broke off: rank [0-2]: rule 'test' on 'w': not today"));
    }
  }
}

TEST(Rule, ThatReturnsNanFollowsThePolicy) {
  for (const NonFinite policy : {NonFinite::kIgnore, NonFinite::kError, NonFinite::kSkipStep, NonFinite::kZero}) {
    test::Training t = test::training(test::one_parameter({4, 3}, 2));
    use_rules(t.problem);
    t.steps = 1;
    t.step_options = [policy](int) {
      StepOptions options;
      options.non_finite = policy;
      return options;
    };
    t.options.rules = {rule_of([](const RuleBatch& b) {
      std::ranges::fill(b.all_updates(), 1.0F);
      b.updates[0] = std::numeric_limits<float>::quiet_NaN();
    })};
    const std::vector<test::RankMemory> ranks = test::train(t);
    if (policy == NonFinite::kError) {
      EXPECT_THAT(test::errors(ranks), Each(HasSubstr("it returned NaN or infinity for parameter 'w'")));
      continue;
    }
    EXPECT_THAT(test::errors(ranks), Each(""));
    float weights[2] = {};
    std::memcpy(weights, ranks[0].weights[0].data(), sizeof weights);
    EXPECT_EQ(std::isnan(weights[0]), policy == NonFinite::kIgnore);
    EXPECT_EQ(weights[0] == test::made_up(0, 0, 1), policy != NonFinite::kIgnore);
    EXPECT_EQ(weights[1] == test::made_up(0, 1, 1), policy == NonFinite::kSkipStep);
  }
}

test::Training one_rule(int32_t ranks) {
  test::Training t = test::training(test::one_parameter({4, 3}, ranks));
  use_rules(t.problem);
  t.options.rules = {mixing_rule()};
  return t;
}

TEST(Rule, IsTriedAtConstruction) {
  test::Training t = one_rule(2);
  t.options.rules = {rule_of([](const RuleBatch& b) {
    if (b.rows == 4) throw Broken();
  })};
  EXPECT_THAT(test::errors(test::train(t)),
              Each(testing::MatchesRegex("rank [01]: rule 'test', tried on 4 x 3 of 'w': not today")));
}

TEST(Rule, ThatIsMissingOrWrongIsRefused) {
  test::Training missing = one_rule(2);
  missing.options.rules = {};
  EXPECT_THAT(test::errors(test::train(missing)), Each(HasSubstr("parameter 'w': group 0 has no rule")));
  test::Training strategy = one_rule(2);
  strategy.options.plan.strategy = Strategy::kMegabatch;
  EXPECT_THAT(test::errors(test::train(strategy)), Each(HasSubstr("strategy megabatch cannot plan")));
  for (const std::string name : {"", "a:b", "rows"}) {
    test::Training state = one_rule(2);
    const auto rule = mixing_rule();
    rule->entries.push_back({name, RuleStateShape::kRows});
    state.options.rules = {rule};
    EXPECT_THAT(test::errors(test::train(state)), Each(HasSubstr("rule 'test': state \"" + name + "\"")));
  }
  test::Training blocks = one_rule(2);
  blocks.problem.parameters[0].matrices.rows = {{2, true, {}}, {2, {}, {}}};
  EXPECT_THAT(test::errors(test::train(blocks)), Each(HasSubstr("a block has NorMuon, the parameter a rule")));
}

TEST(Rule, OnAGpuIsRefused) {
  const test::Training t = one_rule(1);
  OptimizerOptions options = t.options;
  options.device.kind = Device::Kind::kCuda;
  float weight[12] = {};
  const auto communicators = make_local_communicators(1);
  try {
    const Optimizer optimizer(t.problem, options, *communicators[0], {{.weight = weight}});
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(), "parameter 'w': rules run on the CPU so far, its device is a GPU");
  }
}

TEST(Rule, WorkspaceCountsUnderTheScratchCap) {
  test::Training t = one_rule(2);
  const auto rule = mixing_rule();
  rule->scratch = [](int64_t, int64_t, int64_t count) { return count << 20; };
  t.options.rules = {rule};
  t.options.plan.scratch_bytes = 1 << 19;
  for (const test::RankMemory& rank : test::train(t)) EXPECT_EQ(rank.code, ErrorCode::kScratchCapTooSmall);
  t.options.plan.scratch_bytes = 1 << 21;
  EXPECT_THAT(test::errors(test::train(t)), Each(""));
}

// Ranks whose rules declare other state must not step together.
TEST(Rule, ThatDiffersBetweenRanksIsRefused) {
  const test::Training t = one_rule(2);
  const std::vector<std::unique_ptr<Communicator>> communicators = make_local_communicators(2, {});
  std::vector<std::string> said(2);
  test::run_ranks(2, [&](int32_t rank) {
    test::Training mine = t;
    if (rank == 1) {
      const auto other = mixing_rule();
      other->entries[0].name = "lines";
      mine.options.rules = {other};
    }
    try {
      test::train_rank(mine, *communicators[static_cast<size_t>(rank)]);
    } catch (const InvalidArgument& error) {
      said[static_cast<size_t>(rank)] = error.what();
    }
  });
  EXPECT_THAT(said, Each(HasSubstr("other rules on rank 1 than on rank 0")));
}

}  // namespace
}  // namespace muster
