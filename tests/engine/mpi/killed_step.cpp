// The last rank is killed in the middle of a step. Every other one says which step broke off and who is gone, and then
// neither steps nor saves. Several waves are in flight then: two ahead on two ranks, all of them on others. Three ranks
// make steps that begin as gradients come, others whole ones. Before that, any number of waves in flight and either
// kind of step give the same bits. Prints "rank R: passed"; nothing else counts, since mpirun --enable-recovery hides
// statuses.
#include <chrono>
#include <csignal>
#include <cstdio>
#include <string>
#include <vector>

#include "muster/error.h"
#include "muster/optimizer.h"
#include "support/problems.h"
#include "support/rank_programs.h"
#include "support/tamper.h"

namespace muster::test {
namespace {

constexpr auto kTimeout = std::chrono::seconds(20);

constexpr int64_t kSide = 300;  // messages are larger than what MPI sends eagerly
constexpr size_t kMatrices = 15;

Problem matrices(int32_t ranks) {
  Problem problem = one_parameter({kSide, kSide}, ranks, Algorithm::kNorMuon);
  for (size_t i = 1; i < kMatrices; ++i) {
    problem.parameters.push_back(problem.parameters[0]);
    problem.parameters.back().name = "w" + std::to_string(i);
  }
  return problem;
}

using Weights = std::vector<std::vector<float>>;

std::vector<ParameterMemory> memory_of(Weights& weights) {
  std::vector<ParameterMemory> memory;
  for (std::vector<float>& w : weights) memory.push_back({w.data()});
  return memory;
}

// Gradients come from the last to the first.
void step(Optimizer& optimizer, std::span<void* const> gradients, bool overlap) {
  if (overlap) optimizer.begin_step();
  for (size_t p = gradients.size(); p-- > 0 && overlap;) optimizer.ready(static_cast<int32_t>(p), gradients[p]);
  optimizer.step(gradients);
}

bool survives(std::string_view direction) {
  std::unique_ptr<Communicator> inner = make_mpi_communicator({kTimeout});
  const int32_t rank = inner->rank();
  const int32_t culprit = inner->size() - 1;
  const Problem problem = matrices(inner->size());
  Weights weights(kMatrices, std::vector<float>(kSide * kSide));
  Weights gradients = weights;
  std::vector<void*> pointers;
  for (std::vector<float>& gradient : gradients) {
    for (size_t i = 0; i < gradient.size(); ++i) gradient[i] = static_cast<float>(i % 17) - 8;
    pointers.push_back(gradient.data());
  }
  OptimizerOptions options;
  options.plan.waves = 4;  // as many as that, in an order of parameters
  for (size_t p = kMatrices; p-- > 0;) options.plan.order.push_back(static_cast<int32_t>(p));
  const bool overlap = inner->size() == 3;
  bool third_step = false;
  TamperingCommunicator communicator(std::move(inner), [&](std::string_view label, int32_t, std::span<std::byte>) {
    if (rank == culprit && third_step && label.ends_with(direction)) std::raise(SIGKILL);
  });
  const auto two_steps = [&](int32_t in_flight) {
    Weights trained(kMatrices, std::vector<float>(kSide * kSide));
    OptimizerOptions whole = options;
    whole.plan.in_flight = in_flight;
    Optimizer optimizer(problem, whole, communicator, memory_of(trained));
    for (int i = 0; i < 2; ++i) step(optimizer, pointers, false);
    return trained;
  };
  const Weights expected = two_steps(1);
  if (two_steps(2) != expected || two_steps(kAllInFlight) != expected) return false;

  options.plan.in_flight = communicator.size() == 2 ? 2 : kAllInFlight;
  options.overlap = overlap;
  Optimizer optimizer(problem, options, communicator, memory_of(weights));
  if (optimizer.plan().waves.size() < 3 || optimizer.plan().in_flight < 2) return false;
  for (int i = 0; i < 2; ++i) step(optimizer, pointers, overlap);
  if (weights != expected) return false;

  third_step = true;
  const auto begin = std::chrono::steady_clock::now();
  const std::string first = comm_error([&] { step(optimizer, pointers, overlap); });
  const auto waited = std::chrono::steady_clock::now() - begin;
  print_line(rank, first);
  return first.starts_with("step 3 broke off: ") &&
         first.find("rank " + std::to_string(culprit)) != std::string::npos &&
         waited < kTimeout + std::chrono::seconds(5) && comm_error([&] { optimizer.step(pointers); }) == first &&
         comm_error([&] { optimizer.save("never"); }) == first;
}

}  // namespace
}  // namespace muster::test

int main() {
  // While updates return: some ranks have changed weights by then.
  const bool passed = muster::test::survives(" out");
  const char* const rank = std::getenv("OMPI_COMM_WORLD_RANK");
  std::printf("rank %s: %s\n", rank == nullptr ? "?" : rank, passed ? "passed" : "failed");
  std::fflush(stdout);
  std::_Exit(passed ? 0 : 1);  // MPI_Finalize would wait for the dead
}
