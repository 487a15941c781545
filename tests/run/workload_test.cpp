#include "run/workload.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/error.h"
#include "support/oracle.h"
#include "support/problems.h"
#include "support/random_problem.h"

namespace muster::run {
namespace {

float element(Dtype dtype, const std::byte* from) {
  uint32_t bits = 0;
  std::memcpy(&bits, from, static_cast<size_t>(byte_size(dtype)));
  return std::bit_cast<float>(dtype == Dtype::kF32 ? bits : bits << 16);
}

// The elements a rank holds, from the slow oracle.
std::vector<int64_t> held(const Problem& problem, const Parameter& parameter, int32_t rank) {
  const Mesh& mesh = problem.meshes[parameter.layout.mesh];
  for (int32_t position = 0; position < mesh.size(); ++position) {
    if (mesh.rank_at(position) == rank) {
      return test::shard_elements(mesh, parameter.layout, parameter.shape, position);
    }
  }
  return {};
}

// Random problems whose dtypes it takes.
void for_random_problems(const std::function<void(const Problem&)>& body) {
  for (uint64_t seed = 0; seed < 150; ++seed) {
    Problem problem = test::random_case(seed).problem;
    for (Parameter& p : problem.parameters) {
      if (p.dtype == Dtype::kF16) p.dtype = Dtype::kBf16;
      if (p.grad_dtype == Dtype::kF16) p.grad_dtype = Dtype::kF32;
    }
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    body(problem);
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(Workload, GivesEveryLayoutTheSameLogicalValues) {
  size_t problems = 0;
  for_random_problems([&](const Problem& problem) {
    const Workload workload(problem, {.spectrum = all_spectra()[problems++ % all_spectra().size()]});
    for (int32_t p = 0; p < std::ssize(problem.parameters); ++p) {
      const Parameter& parameter = problem.parameters[p];
      const int64_t count = element_count(parameter.shape);
      const std::vector<float> weights = workload.weights(p, {0, count});
      const std::vector<float> whole = workload.gradients(p, {0, count}, 3);
      std::map<int64_t, std::vector<float>> gradients;  // of each element, in the order of the ranks
      for (int32_t rank = 0; rank < problem.ranks; ++rank) {
        const std::vector<int64_t> elements = held(problem, parameter, rank);
        ASSERT_EQ(workload.elements(p, rank), std::ssize(elements));
        if (elements.empty()) continue;
        const int64_t width = byte_size(parameter.dtype);
        const int64_t grad_width = byte_size(parameter.grad_dtype);
        std::vector<std::byte> mine(elements.size() * static_cast<size_t>(width));
        std::vector<std::byte> grad(elements.size() * static_cast<size_t>(grad_width));
        workload.fill_weights(p, rank, mine.data());
        workload.fill_gradients(p, rank, 3, grad.data());
        for (int64_t i = 0; i < std::ssize(elements); ++i) {
          ASSERT_EQ(element(parameter.dtype, mine.data() + i * width), weights[elements[i]]);
          gradients[elements[i]].push_back(element(parameter.grad_dtype, grad.data() + i * grad_width));
        }
        ASSERT_EQ(workload.element_at(p, rank, std::ssize(elements) - 1), elements.back());
      }
      for (const auto& [e, values] : gradients) {
        float sum = 0;
        for (const float v : values) sum += v;
        const bool averaged = problem.grad_sync && values.size() > 1;
        ASSERT_EQ(whole[e], averaged ? sum / static_cast<float>(values.size()) : values[0]) << "element " << e;
        if (!problem.grad_sync) {
          ASSERT_THAT(values, testing::Each(values[0]));
        }
      }
    }
  });
}

// Nobody has one, some shards have, all have: each must happen, and the whole must have zeros where nothing is given.
TEST(Workload, LeavesGradientsOut) {
  std::map<std::string, int> seen;
  for_random_problems([&](const Problem& problem) {
    const Workload workload(problem, {.missing = true});
    const Workload full(problem);
    for (int32_t p = 0; p < std::ssize(problem.parameters); ++p) {
      const Parameter& parameter = problem.parameters[p];
      const int64_t count = element_count(parameter.shape);
      for (int64_t step = 0; step < 4; ++step) {
        std::map<int64_t, int> given;  // how many ranks give an element's gradient
        int32_t holders = 0;
        int32_t givers = 0;
        for (int32_t rank = 0; rank < problem.ranks; ++rank) {
          const std::vector<int64_t> elements = held(problem, parameter, rank);
          if (elements.empty()) continue;
          const bool gives = workload.has_gradient(p, rank, step);
          ++holders;
          givers += gives ? 1 : 0;
          for (const int64_t e : elements) given[e] += gives ? 1 : 0;
        }
        ASSERT_EQ(workload.has_gradient(p, kWhole, step), givers > 0);
        if (holders > 1) ++seen[givers == 0 ? "none" : givers == holders ? "all" : "some"];
        const std::vector<float> whole = workload.gradients(p, {0, count}, step);
        const std::vector<float> all = full.gradients(p, {0, count}, step);
        for (const auto& [e, ranks] : given) {
          if (ranks == 0) {
            ASSERT_EQ(whole[e], 0) << "element " << e;
          } else if (!problem.grad_sync) {
            ASSERT_EQ(whole[e], all[e]) << "element " << e;
          }
        }
      }
    }
  });
  EXPECT_GT(seen["none"], 100);
  EXPECT_GT(seen["some"], 100);
  EXPECT_GT(seen["all"], 100);
}

TEST(Workload, TakesTheShardsOfAWholeParameter) {
  for_random_problems([](const Problem& problem) {
    const Workload workload(problem);
    for (int32_t p = 0; p < std::ssize(problem.parameters); ++p) {
      const auto width = static_cast<size_t>(byte_size(problem.parameters[p].dtype));
      std::vector<std::byte> whole(static_cast<size_t>(workload.elements(p, kWhole)) * width);
      workload.fill_weights(p, kWhole, whole.data());
      for (int32_t rank = 0; rank < problem.ranks; ++rank) {
        std::vector<std::byte> filled(static_cast<size_t>(workload.elements(p, rank)) * width);
        std::vector<std::byte> taken(filled.size());
        workload.fill_weights(p, rank, filled.data());
        workload.take_shard(p, rank, whole.data(), taken.data());
        ASSERT_EQ(filled, taken);
      }
    }
  });
}

TEST(Workload, LooksLikeGradients) {
  const Problem problem = test::one_parameter({1000, 100}, 1);
  const Workload workload(problem, {.gradient_size = 0.5F});
  const std::vector<float> values = workload.gradients(0, {0, 100'000}, 0);
  double sum = 0;
  double squares = 0;
  for (const float v : values) {
    sum += v;
    squares += static_cast<double>(v) * v;
  }
  // 100,000 draws: the mean is within 5 deviations of 0.5 / sqrt(100,000), the mean square within 5 of 0.25 / 224.
  EXPECT_NEAR(sum / 1e5, 0, 0.008);
  EXPECT_NEAR(squares / 1e5, 0.25, 0.006);
  EXPECT_NE(values, workload.gradients(0, {0, 100'000}, 1));
  EXPECT_NE(values, Workload(problem, {.seed = 2, .gradient_size = 0.5F}).gradients(0, {0, 100'000}, 0));
}

TEST(Workload, RefusesF16ByName) {
  Problem problem = test::one_parameter({8, 8}, 1);
  problem.parameters[0].grad_dtype = Dtype::kF16;
  EXPECT_THAT([&] { const Workload workload(problem); },
              testing::ThrowsMessage<InvalidArgument>(testing::HasSubstr("parameter 'w': gradients are f16")));
}

}  // namespace
}  // namespace muster::run
