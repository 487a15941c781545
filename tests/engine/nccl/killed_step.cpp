// The last rank is killed in the middle of a step on a GPU, over NCCL. Every other one says which step broke off, and
// then neither steps nor saves. Prints "rank R: passed"; nothing else counts, since mpirun --enable-recovery hides
// statuses. MUSTER_TEST_WAY says how it dies: before_step (the others wait in exchanges that they have enqueued) or
// within_step (a moment after it has enqueued its own), of steps that are carried out call by call or _recorded_.
#include <chrono>
#include <csignal>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#include "comm/nccl/ranks.h"
#include "muster/error.h"
#include "muster/optimizer.h"
#include "support/problems.h"

namespace muster::test {
namespace {

using kernels::cuda::DeviceVector;

constexpr auto kTimeout = std::chrono::seconds(20);
constexpr int64_t kSide = 4096;
constexpr int kWhole = 5;  // steps before the one that breaks off: carried out, captured, and replayed

struct Way {
  bool recorded = false;
  bool within = false;
};

Problem large_matrices(int32_t ranks) {
  Problem problem = one_parameter({kSide, kSide}, ranks, Algorithm::kNorMuon);
  for (const char* name : {"u", "v", "x", "y", "z"}) {
    problem.parameters.push_back(problem.parameters[0]);
    problem.parameters.back().name = name;
  }
  return problem;
}

std::string find_wrong(Communicator& comm, Way way) {
  const int32_t culprit = comm.size() - 1;
  const Problem problem = large_matrices(comm.size());
  const auto elements = static_cast<size_t>(kSide * kSide / comm.size());
  std::vector<float> values(elements);
  for (size_t i = 0; i < elements; ++i) values[i] = static_cast<float>(i % 1013) / 506 - 1;
  std::vector<std::unique_ptr<DeviceVector<float>>> vectors;
  std::vector<ParameterMemory> memory;
  std::vector<void*> gradients;
  for (size_t p = 0; p < problem.parameters.size(); ++p) {
    memory.push_back({vectors.emplace_back(std::make_unique<DeviceVector<float>>(values))->data()});
    gradients.push_back(vectors.emplace_back(std::make_unique<DeviceVector<float>>(values))->data());
  }
  OptimizerOptions options;
  options.plan.cost = CostTable::h200();
  options.plan.waves = 3;
  options.device.kind = Device::Kind::kCuda;
  options.graph = way.recorded;
  Optimizer optimizer(problem, options, comm, memory);
  for (int step = 0; step < kWhole; ++step) optimizer.step(gradients);
  optimizer.synchronize();
  const auto begin = std::chrono::steady_clock::now();
  optimizer.step(gradients);
  optimizer.synchronize();
  const auto whole = std::chrono::steady_clock::now() - begin;

  comm.barrier("about to break")->wait();
  if (comm.rank() == culprit) {
    if (way.within) {
      // A step takes the host less than the device. Should it return after the kill, it was under way all the same.
      std::thread([whole] {
        std::this_thread::sleep_for(whole / 2);
        ::kill(::getpid(), SIGKILL);
      }).detach();
      while (true) optimizer.step(gradients);
    }
    std::raise(SIGKILL);
  }
  // The one that dies may come to the end of a step or two before.
  const auto start = std::chrono::steady_clock::now();
  const std::string first = comm_error([&] {
    for (int i = 0; i < 1000; ++i) {
      optimizer.step(gradients);
      optimizer.synchronize();
    }
  });
  const auto waited = std::chrono::steady_clock::now() - start;
  print_line(comm.rank(), first);
  const int64_t last = optimizer.steps() + 1;
  bool names_step = false;  // enqueued or not when it was broken off
  for (int64_t number = last - 1; number <= last; ++number) {
    names_step |= first.starts_with("step " + std::to_string(number) + " broke off: ");
  }
  if (!names_step) return "does not name the step";
  if (first.find("rank " + std::to_string(culprit)) == std::string::npos) return "does not name the rank";
  if (waited > kTimeout + std::chrono::seconds(10)) return "waited for longer than the timeout";
  if (comm_error([&] { optimizer.step(gradients); }) != first) return "steps";
  if (comm_error([&] { optimizer.synchronize(); }) != first) return "synchronizes";
  if (comm_error([&] { optimizer.save("never"); }) != first) return "saves";
  if (cudaDeviceSynchronize() != cudaSuccess) return "the device is broken";
  return "";
}

int run() {
  const char* const given = std::getenv("MUSTER_TEST_WAY");
  const std::string name = given == nullptr ? "" : given;
  const Way way{name.find("recorded") != std::string::npos, name.starts_with("within")};
  const auto mpi = make_mpi_communicator();
  claim_a_machine(mpi->rank());
  const auto comm = make_nccl_communicator(*mpi, {kTimeout});
  const int status = conclude(mpi->rank(), find_wrong(*comm, way));
  std::this_thread::sleep_for(std::chrono::seconds(3));  // the others would take this rank for the dead one
  std::_Exit(status);                                    // MPI_Finalize would wait for the dead
}

}  // namespace
}  // namespace muster::test

int main(int argc, char** argv) {
  using namespace muster::test;
  return run_or_skip(argc, argv, run);
}
