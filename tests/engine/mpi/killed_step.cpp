// The last rank is killed in the middle of a step. Every other one says which step broke off and who is gone, and then
// neither steps nor saves. Three ranks make steps that begin as gradients come, others whole ones; the former first
// give the bits of the latter. Prints "rank R: passed"; nothing else counts, since mpirun --enable-recovery hides
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
  Problem problem = one_parameter({600, 600}, inner->size(), Algorithm::kNorMuon);  // more than MPI sends eagerly
  for (const char* name : {"v", "x", "y", "z"}) {
    problem.parameters.push_back(problem.parameters[0]);
    problem.parameters.back().name = name;
  }
  std::vector<std::vector<float>> weights(problem.parameters.size(), std::vector<float>(600 * 600));
  std::vector<std::vector<float>> gradients = weights;
  std::vector<ParameterMemory> memory;
  std::vector<void*> pointers;
  for (size_t p = 0; p < weights.size(); ++p) {
    for (size_t i = 0; i < gradients[p].size(); ++i) gradients[p][i] = static_cast<float>(i % 17) - 8;
    memory.push_back({weights[p].data()});
    pointers.push_back(gradients[p].data());
  }
  OptimizerOptions options;
  options.plan.waves = 3;
  const bool overlap = inner->size() == 3;
  bool third_step = false;
  TamperingCommunicator communicator(std::move(inner), [&](std::string_view label, int32_t, std::span<std::byte>) {
    if (rank == culprit && third_step && label.ends_with(direction)) std::raise(SIGKILL);
  });
  std::vector<std::vector<float>> whole = weights;
  if (overlap) {
    std::vector<ParameterMemory> other;
    for (std::vector<float>& w : whole) other.push_back({w.data()});
    Optimizer optimizer(problem, options, communicator, other);
    for (int i = 0; i < 2; ++i) step(optimizer, pointers, false);
    options.overlap = true;
    options.plan.order = {4, 3, 2, 1, 0};
  }
  Optimizer optimizer(problem, options, communicator, memory);
  for (int i = 0; i < 2; ++i) step(optimizer, pointers, overlap);
  if (overlap && weights != whole) return false;

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
