// The same gradients give the same bits, on one rank or many, under any layout, strategy and number of waves.
#include <bit>
#include <cstring>
#include <functional>
#include <map>
#include <thread>

#include <gtest/gtest.h>

#include "engine/optimizer.h"
#include "muster/error.h"
#include "support/oracle.h"
#include "support/random_problem.h"

namespace muster::engine {
namespace {

uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

// A value for an element of a parameter, about uniform in -1 to 1, whoever asks.
float value(size_t parameter, int64_t element, uint64_t salt) {
  const uint64_t bits = mix(mix(parameter * 1'000'003 + salt) + static_cast<uint64_t>(element) * 0x9e3779b97f4a7c15);
  return static_cast<float>(static_cast<int64_t>(bits >> 40)) / 8388608.0F - 1.0F;
}

// One rank's memory: shards in their storage dtype.
struct RankMemory {
  std::vector<std::vector<std::byte>> weights;
  std::vector<std::vector<int64_t>> elements;  // global, in storage order
};

void store(Dtype dtype, float v, std::byte* to) {
  uint32_t bits = 0;
  std::memcpy(&bits, &v, 4);
  if (dtype == Dtype::kF32) {
    std::memcpy(to, &bits, 4);
  } else {
    const auto half = static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
    std::memcpy(to, &half, 2);
  }
}

float rounded(Dtype dtype, float v) {
  std::byte bytes[4] = {};
  store(dtype, v, bytes);
  uint32_t bits = 0;
  std::memcpy(&bits, bytes, 4);
  if (dtype != Dtype::kF32) bits = (bits & 0xffff) << 16;
  return std::bit_cast<float>(bits);
}

// The gradient that a rank has for an element.
using Gradient = std::function<float(int32_t rank, size_t parameter, int64_t element, int step)>;

template <typename Value>
std::vector<std::byte> filled(Dtype dtype, const std::vector<int64_t>& elements, Value of) {
  const auto width = static_cast<size_t>(byte_size(dtype));
  std::vector<std::byte> out(elements.size() * width);
  for (size_t i = 0; i < elements.size(); ++i) store(dtype, of(elements[i]), out.data() + i * width);
  return out;
}

// Runs every rank of a problem as a thread and returns their memory after some steps.
std::vector<RankMemory> train(const Problem& problem, const PlanOptions& plan, int steps, const Gradient& gradient) {
  std::vector<RankMemory> memory(problem.ranks);
  std::vector<std::unique_ptr<Communicator>> communicators =
      make_local_communicators(problem.ranks, {std::chrono::seconds(60)});
  std::vector<std::string> errors(problem.ranks);
  auto run = [&](int32_t rank) {
    RankMemory& mine = memory[rank];
    std::vector<ParameterMemory> parameters;
    for (size_t p = 0; p < problem.parameters.size(); ++p) {
      const Parameter& parameter = problem.parameters[p];
      const Mesh& mesh = problem.meshes[parameter.layout.mesh];
      mine.elements.emplace_back();
      for (int32_t position = 0; position < mesh.size(); ++position) {
        if (mesh.rank_at(position) != rank) continue;
        mine.elements.back() = test::shard_elements(mesh, parameter.layout, parameter.shape, position);
      }
      mine.weights.push_back(
          filled(parameter.dtype, mine.elements.back(), [&](int64_t element) { return value(p, element, 1); }));
    }
    for (size_t p = 0; p < problem.parameters.size(); ++p) {
      parameters.push_back({mine.weights[p].data(), nullptr,
                            problem.parameters[p].dtype == Dtype::kF32 ? WeightForm::kF32 : WeightForm::kBf16});
    }
    const auto kernels = kernels::make_cpu_kernels({1});
    OptimizerOptions options;
    options.plan = plan;
    Optimizer optimizer(problem, options, *communicators[rank], *kernels, parameters,
                        std::vector<int32_t>(problem.parameters.size(), 0), 1);
    optimizer.group(0).weight_decay = 0.1;
    optimizer.group(0).decay = Decay::kCautious;
    for (int step = 0; step < steps; ++step) {
      std::vector<std::vector<std::byte>> gradients;
      std::vector<const void*> pointers;
      for (size_t p = 0; p < problem.parameters.size(); ++p) {
        gradients.push_back(filled(problem.parameters[p].grad_dtype, mine.elements[p],
                                   [&](int64_t element) { return gradient(rank, p, element, step); }));
        pointers.push_back(gradients.back().data());
      }
      optimizer.group(0).lr = 0.02 / (1 + step);
      optimizer.step(pointers);
    }
  };
  std::vector<std::thread> threads;
  for (int32_t r = 0; r < problem.ranks; ++r) {
    threads.emplace_back([&, r] {
      try {
        run(r);
      } catch (const std::exception& error) {
        errors[r] = error.what();
        communicators[r]->abort(error.what());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  return memory;
}

Problem on_one_rank(Problem problem) {
  problem.ranks = 1;
  problem.meshes = {{"one", {{"only", 1}}, {}}};
  problem.grad_sync = false;
  for (Parameter& p : problem.parameters) {
    p.layout = {0, {Placement::replicate()}, {}};
    p.grad_dtype = Dtype::kF32;
  }
  return problem;
}

// What one rank is given for what many have: their sum in the order of the ranks over their number, where Muster
// averages; else what each of them has.
Gradient averaged(const Problem& problem, const std::vector<RankMemory>& many, const Gradient& gradient) {
  std::vector<std::map<int64_t, std::vector<int32_t>>> holders(problem.parameters.size());
  for (int32_t r = 0; r < problem.ranks; ++r) {
    for (size_t p = 0; p < holders.size(); ++p) {
      for (const int64_t element : many[r].elements[p]) holders[p][element].push_back(r);
    }
  }
  return [&problem, holders, gradient](int32_t, size_t p, int64_t element, int step) {
    const std::vector<int32_t>& ranks = holders[p].at(element);
    const Dtype dtype = problem.parameters[p].grad_dtype;
    if (!problem.grad_sync || ranks.size() == 1) return rounded(dtype, gradient(ranks[0], p, element, step));
    float sum = 0;
    for (const int32_t rank : ranks) sum += rounded(dtype, gradient(rank, p, element, step));
    return sum / static_cast<float>(ranks.size());
  };
}

class LayoutExact : public testing::TestWithParam<uint64_t> {};

TEST_P(LayoutExact, ManyRanksGiveTheBitsOfOne) {
  constexpr uint64_t kEach = 100;
  int planned = 0;
  for (uint64_t seed = GetParam() * kEach; seed < (GetParam() + 1) * kEach; ++seed) {
    test::RandomCase c = test::random_case(seed);
    if (c.problem.ranks > 10) continue;
    try {
      make_plan(c.problem, c.options);
    } catch (const InvalidArgument&) {
      continue;
    }
    ++planned;
    const bool sync = c.problem.grad_sync;
    const Gradient gradient = [sync](int32_t rank, size_t p, int64_t element, int step) {
      return value(p, element, 100 + static_cast<uint64_t>(step) + (sync ? 1000 * static_cast<uint64_t>(rank) : 0));
    };
    const std::vector<RankMemory> many = train(c.problem, c.options, 3, gradient);
    const RankMemory one = train(on_one_rank(c.problem), {}, 3, averaged(c.problem, many, gradient))[0];
    for (int32_t r = 0; r < c.problem.ranks; ++r) {
      for (size_t p = 0; p < c.problem.parameters.size(); ++p) {
        const auto width = static_cast<size_t>(byte_size(c.problem.parameters[p].dtype));
        for (size_t i = 0; i < many[r].elements[p].size(); ++i) {
          const auto element = static_cast<size_t>(many[r].elements[p][i]);
          ASSERT_EQ(std::memcmp(many[r].weights[p].data() + i * width, one.weights[p].data() + element * width, width),
                    0)
              << "seed " << seed << ", strategy " << name(c.options.strategy) << ", rank " << r << ", parameter " << p
              << ", element " << element;
        }
      }
    }
  }
  EXPECT_GT(planned, 80);
}

INSTANTIATE_TEST_SUITE_P(Random, LayoutExact, testing::Range(uint64_t{0}, uint64_t{6}));

}  // namespace
}  // namespace muster::engine
