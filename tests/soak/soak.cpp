// Trains for a long time, and fails if the process grows: soak SECONDS.
//
// A round resumes from the checkpoint of the round before on another number of ranks (threads of this process), cut
// differently, with half of the parameters at first and all of them later. It changes hyperparameters and missing
// gradients in every step, refuses a step, saves twice and reconnects once. The first cycles warm up; from then on
// every cycle must end with as many threads and file descriptors as the last of them, and with at most kAllocated more
// bytes allocated and kResident more bytes resident.
#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <malloc.h>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "chaos/trainee.h"
#include "kernels/cpu/products.h"
#include "muster/error.h"
#include "support/run_ranks.h"

namespace muster::soak {
namespace {

using chaos::Trainee;
using Clock = std::chrono::steady_clock;

constexpr size_t kWarmUp = 4;    // cycles: the allocator's arenas, the libraries' caches
constexpr int kMostThreads = 8;  // that multiply at the same time: 4 ranks x 2
// A leak of 100 bytes per step would pass it in 65 cycles of 60 steps: ten minutes on two idle cores.
constexpr int64_t kAllocated = 384 << 10;
// What was freed and stays with malloc: the arenas of threads that ended. The packing buffers, 128 MiB, come and go
// with the pages that products touch.
constexpr int64_t kResident = int64_t{160} << 20;
constexpr int32_t kRanks[] = {1, 4, 2, 3};  // of the rounds of a cycle
constexpr int kSteps = 10;                  // of a round

struct Usage {
  int64_t resident = 0;   // bytes
  int64_t allocated = 0;  // bytes that malloc has given out
  int64_t threads = 0;
  int64_t files = 0;
};

int64_t entries(const char* directory) {
  return std::distance(std::filesystem::directory_iterator(directory), std::filesystem::directory_iterator());
}

Usage usage() {
  ::malloc_trim(0);
  std::ifstream statm("/proc/self/statm");
  int64_t size = 0;
  int64_t resident = 0;
  statm >> size >> resident;
  const struct mallinfo2 heap = ::mallinfo2();
  return {resident * ::sysconf(_SC_PAGESIZE), static_cast<int64_t>(heap.uordblks + heap.hblkhd),
          entries("/proc/self/task"), entries("/proc/self/fd")};
}

OptimizerOptions make_options(int64_t round) {
  OptimizerOptions options;
  options.seed = 7;
  options.groups.resize(3);
  options.plan.waves = static_cast<int32_t>(round % 4);
  options.overlap = round % 3 == 2;
  options.threads = 1 + static_cast<int>(round % 2);
  return options;
}

// Half of the parameters, or all: what is new starts from its first weights and from empty state.
Problem make_problem(int32_t ranks, int64_t round, bool all) {
  Problem problem = chaos::make_problem(ranks, round);
  if (!all) problem.parameters.resize(problem.parameters.size() / 2);
  return problem;
}

void train(Trainee& trainee, int64_t round, bool overlap, int steps) {
  for (int s = 0; s < steps; ++s) {
    Optimizer& optimizer = trainee.optimizer();
    const int64_t step = optimizer.steps();
    for (int32_t g = 0; g < optimizer.groups(); ++g) {
      Group& group = optimizer.group(g);
      group.lr = 0.02 / static_cast<double>(1 + (step + g) % 7);
      group.momentum = step % 5 == 0 ? 0.9 : 0.95;
      group.weight_decay = 0.01 * static_cast<double>(step % 3);
      group.every = 1 + (step + round) % 2;
    }
    StepOptions options;
    if (!overlap) {
      options.max_grad_norm = step % 4 == 0 ? 1 : 0;
      options.non_finite = step % 3 == 0 ? NonFinite::kSkipStep : NonFinite::kIgnore;
      options.parameter_stats = step % 6 == 0;
      options.trace = step % 5 == 0;
    }
    const auto parameters = std::ssize(trainee.problem().parameters);
    trainee.step(overlap, step % (parameters + 1) == parameters ? -1 : step % (parameters + 1), options);
  }
}

// What the optimizer of half the parameters has becomes part of the one of all: as add_param_group does it.
void carry_over(Trainee& from, Trainee& to) {
  std::vector<StateTensor> state;
  for (const StateInfo& info : from.optimizer().state()) state.push_back(from.optimizer().export_state(info.name));
  to.optimizer().import_state(state);
}

void run_rank(Communicator& communicator, Communicator& second, const std::string& directory, int64_t round) {
  const int32_t ranks = communicator.size();
  const OptimizerOptions options = make_options(round);
  Trainee all(make_problem(ranks, round, true), options, communicator);
  if (round > 0) all.optimizer().load(directory);
  {
    Trainee half(make_problem(ranks, round, false), options, communicator);
    train(half, round, options.overlap, kSteps / 2);
    if (round == 0) carry_over(half, all);
  }
  train(all, round, options.overlap, kSteps / 2);
  all.optimizer().save(directory);
  // A refused step changes nothing.
  std::vector<void*> too_few;
  bool refused = false;
  try {
    all.optimizer().step(too_few);
  } catch (const InvalidArgument&) {
    refused = true;
  }
  if (!refused) throw std::runtime_error("a step without gradients was not refused");
  all.optimizer().reconnect(second);
  train(all, round, options.overlap, kSteps / 2);
  all.optimizer().save(directory);
}

bool grew(const Usage& now, const Usage& before) {
  return now.threads != before.threads || now.files != before.files || now.allocated > before.allocated + kAllocated ||
         now.resident > before.resident + kResident;
}

std::string text(const Usage& usage) {
  return fmt::format("{:.1f} KiB allocated, {:.1f} MiB resident, {} threads, {} files",
                     static_cast<double>(usage.allocated) / (1 << 10), static_cast<double>(usage.resident) / (1 << 20),
                     usage.threads, usage.files);
}

// BLIS keeps a packing buffer of 16 MiB for every product that was ever under way at the same time as others. How many
// meet in training is chance, so all do at first.
void fill_packing_pool() {
  constexpr int64_t kSide = 512;
  const std::vector<float> operand(kSide * kSide, 1.0F);
  std::barrier start(kMostThreads);
  std::vector<std::jthread> threads;
  for (int t = 0; t < kMostThreads; ++t) {
    threads.emplace_back([&] {
      std::vector<float> result(operand.size());
      kernels::cpu::Product product{.rows = kSide, .columns = kSide, .inner = kSide, .c = result.data()};
      product.a = product.b = {.data = operand.data(), .stride = kSide};
      start.arrive_and_wait();
      const auto begin = Clock::now();
      while (Clock::now() - begin < std::chrono::seconds(1)) kernels::cpu::run(product, 1, 0);
    });
  }
}

int run(std::chrono::duration<double> time) {
  fill_packing_pool();
  const std::string directory =
      (std::filesystem::temp_directory_path() / ("muster-soak-" + std::to_string(::getpid()))).string();
  const auto begin = Clock::now();
  std::vector<Usage> used;  // after each cycle
  int64_t round = 0;
  int status = 0;
  while (status == 0 && (used.size() < kWarmUp + 2 || Clock::now() - begin < time)) {
    for (const int32_t ranks : kRanks) {
      const auto seconds = make_local_communicators(ranks, {std::chrono::seconds(60)});
      test::run_ranks(ranks, [&](Communicator& communicator) {
        run_rank(communicator, *seconds[static_cast<size_t>(communicator.rank())], directory, round);
      });
      if (testing::Test::HasFailure()) status = 1;
      ++round;
    }
    used.push_back(usage());
    if (used.size() > kWarmUp && grew(used.back(), used[kWarmUp - 1])) status = 1;
  }
  std::filesystem::remove_all(directory);
  for (size_t cycle = 0; status != 0 && cycle < used.size(); ++cycle) {
    std::printf("soak: cycle %zu: %s\n", cycle, text(used[cycle]).c_str());
  }
  std::printf("soak: %lld rounds on 1, 4, 2 and 3 ranks, %.0f s: %s; then %s: %s\n", static_cast<long long>(round),
              std::chrono::duration<double>(Clock::now() - begin).count(), text(used[kWarmUp - 1]).c_str(),
              text(used.back()).c_str(), status == 0 ? "flat" : "FAILED");
  return status;
}

}  // namespace
}  // namespace muster::soak

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc != 2) {
    std::fprintf(stderr, "soak: how many seconds?\n");
    return 2;
  }
  return muster::soak::run(std::chrono::duration<double>(std::stod(argv[1])));
}
