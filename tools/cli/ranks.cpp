#include "ranks.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <numeric>
#include <thread>

#include <fmt/format.h>

#include "arguments.h"
#include "base/text.h"
#include "kernels/kernels.h"
#include "muster/error.h"
#include "plan_text/text.h"

namespace muster::cli {
namespace {

constexpr int32_t kDefaultRanks = 2;
constexpr int32_t kMaxThreads = 1024;

int from_environment(std::initializer_list<const char*> names, int otherwise) {
  for (const char* name : names) {
    const char* text = std::getenv(name);
    if (text != nullptr && *text != '\0') return std::atoi(text);
  }
  return otherwise;
}

int status_of(const std::exception& error) { return dynamic_cast<const InvalidArgument*>(&error) != nullptr ? 2 : 1; }

// NCCL does not let two ranks of a host share a GPU: where they have to, each has a host to itself.
void part_hosts(const Process& process) {
  if (process.local_count > kernels::cuda_devices()) {
    setenv("NCCL_HOSTID", fmt::format("muster-rank-{}", process.rank).c_str(), 0);
  }
}

// MPI_Init has no timeout: ranks wait in theirs, for ever, for one that stopped or died before its own. While this
// object lives, it waits for the timeout and then ends the process.
class StartUpWatch {
 public:
  explicit StartUpWatch(std::chrono::seconds timeout) : thread_([this, timeout] { watch(timeout); }) {}
  ~StartUpWatch() {
    {
      const std::lock_guard lock(mutex_);
      started_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  StartUpWatch(const StartUpWatch&) = delete;
  StartUpWatch& operator=(const StartUpWatch&) = delete;

 private:
  void watch(std::chrono::seconds timeout) {
    // Once MPI_Init has returned, what follows it keeps to the timeout by itself, and says more.
    constexpr std::chrono::seconds kGrace{1};
    std::unique_lock lock(mutex_);
    if (changed_.wait_for(lock, timeout + kGrace, [this] { return started_; })) return;
    report_error(
        fmt::format("MPI_Init: not all ranks called it within {} s (--timeout {})", timeout.count(), timeout.count()));
    std::_Exit(1);
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool started_ = false;
  std::thread thread_;
};

}  // namespace

Process this_process() {
  const int rank = from_environment({"OMPI_COMM_WORLD_RANK", "PMI_RANK"}, 0);
  const int count = from_environment({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}, 0);
  return {rank, count, from_environment({"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"}, rank),
          from_environment({"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"}, std::max(count, 1))};
}

void report_error(std::string_view message) {
  using std::chrono::milliseconds;
  const int rank = this_process().rank;
  if (rank != 0) std::this_thread::sleep_for(milliseconds(3000 + 200 * rank));
  fmt::print(stderr, "muster: error: {}\n", one_line(message));
  std::fflush(stderr);
}

void Ranks::add_to(CLI::App& command, const std::string& threads) {
  command
      .add_option(
          "--comm", comm_,
          "local: ranks are threads; mpi, nccl: processes of mpirun (default local; under mpirun mpi, or nccl on cuda)")
      ->type_name("C");
  command.add_option("--device", device_, "cpu (default) or cuda")->type_name("D");
  command.add_option("--threads", threads_, fmt::format("Threads of each rank on the CPU (default {})", threads))
      ->type_name("T");
  command.add_option("--timeout", timeout_, "How long a rank waits for another before it fails (default 600)")
      ->type_name("SECONDS");
}

void Ranks::check() const {
  if (device() != "cpu" && !cuda()) {
    throw InvalidArgument(fmt::format("--device: {} is neither cpu nor cuda", base::in_quotes(device_)));
  }
  if (cuda() && !cuda_available()) {
    throw InvalidArgument("--device: 'cuda' is not built in, or this machine has no GPU");
  }
  if (comm() != "local" && comm() != "mpi" && comm() != "nccl") {
    throw InvalidArgument(fmt::format("--comm: {} is none of local, mpi and nccl", base::in_quotes(comm_)));
  }
  if (comm() == "nccl" && !cuda()) throw InvalidArgument("--comm: 'nccl' is for --device cuda");
  if (comm() == "nccl" && !nccl_available()) {
    throw InvalidArgument("--comm: 'nccl' is not built in, or libnccl is not there");
  }
  if ((comm() == "mpi" || (comm() == "nccl" && this_process().count > 0)) && !mpi_available()) {
    throw InvalidArgument(fmt::format("--comm: '{}' needs MPI, which is not built in", comm()));
  }
  if (comm() == "local" && this_process().count > 1) {
    throw InvalidArgument(
        fmt::format("--comm: 'local' under mpirun would do everything {} times", this_process().count));
  }
  threads();
  comm_options();
}

std::string_view Ranks::comm() const {
  if (!comm_.empty()) return comm_;
  if (this_process().count == 0) return "local";
  return cuda() && nccl_available() ? "nccl" : "mpi";
}

std::string_view Ranks::device() const { return device_.empty() ? std::string_view("cpu") : device_; }

CostTable Ranks::cost() const { return cuda() ? CostTable::h200() : CostTable::cpu(); }

std::vector<bool> Ranks::parse_graph(std::string_view text) const {
  const std::vector<bool> switches = parse_switches("--graph", text);
  if (!cuda()) throw InvalidArgument(fmt::format("--graph {}: is for --device cuda", text));
  return switches;
}

Device Ranks::device_of(int rank) const {
  return cuda() ? Device{Device::Kind::kCuda, rank % kernels::cuda_devices()} : Device{};
}

std::vector<int32_t> Ranks::here(int32_t ranks) const {
  if (comm() != "local") {
    const int32_t own = this_process().rank;
    return own < ranks ? std::vector{own} : std::vector<int32_t>{};
  }
  std::vector<int32_t> all(static_cast<size_t>(ranks));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

int Ranks::threads(int otherwise) const {
  return threads_.empty() ? otherwise : static_cast<int>(parse_integer("--threads", threads_, {1, 1024}));
}

CommOptions Ranks::comm_options() const {
  if (timeout_.empty()) return {};
  return {std::chrono::seconds(parse_integer("--timeout", timeout_, {1, 1'000'000}))};
}

Failure Ranks::with_timeout(const CommError& error) const {
  Failure failure = error.failure();
  if (failure.code == ErrorCode::kRankMissing) {
    failure.text += fmt::format(" (--timeout {})",
                                std::chrono::duration_cast<std::chrono::seconds>(comm_options().timeout).count());
  }
  return failure;
}

std::unique_ptr<Communicator> Ranks::start_mpi() const {
  const CommOptions options = comm_options();
  const StartUpWatch watch(std::chrono::duration_cast<std::chrono::seconds>(options.timeout));
  try {
    return make_mpi_communicator(options);
  } catch (const CommError& error) {
    throw CommError(with_timeout(error));
  }
}

void Ranks::run(int32_t ranks, const Body& body) const {
  if (comm() == "local") {
    run_threads(ranks != 0 ? ranks : cuda() ? 1 : kDefaultRanks, body);
  } else {
    run_process(ranks, body);
  }
}

void Ranks::run_threads(int32_t ranks, const Body& body) const {
  if (ranks > kMaxThreads) throw InvalidArgument(fmt::format("{} ranks: as threads at most {}", ranks, kMaxThreads));
  std::vector<std::unique_ptr<Communicator>> communicators = make_local_communicators(ranks, comm_options());
  std::mutex mutex;
  std::exception_ptr first;  // the others are told of it, and fail too
  const auto run_rank = [&](int32_t rank) {
    const std::unique_ptr<Communicator> mine = std::move(communicators[static_cast<size_t>(rank)]);
    try {
      body(*mine, device_of(rank));
    } catch (const std::exception& error) {
      {
        const std::lock_guard lock(mutex);
        if (first == nullptr) first = std::current_exception();
      }
      mine->abort(error.what());
    }
  };
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < ranks; ++rank) threads.emplace_back(run_rank, rank);
  for (std::thread& thread : threads) thread.join();
  if (first == nullptr) return;
  try {
    std::rethrow_exception(first);
  } catch (const CommError& error) {
    throw CommError(with_timeout(error));
  }
}

void Ranks::run_process(int32_t ranks, const Body& body) const {
  const Process process = this_process();
  const bool nccl = comm() == "nccl";
  // NCCL's ranks find each other over MPI; one alone needs nobody.
  std::unique_ptr<Communicator> processes =
      nccl && process.count == 0 ? std::move(make_local_communicators(1, comm_options()).front()) : start_mpi();
  const int32_t size = processes->size();
  const bool prints = processes->rank() == 0;
  // Rank 0 prints before it leaves: mpirun ends what still runs as soon as one process has failed.
  if (ranks != 0 && size != ranks) {
    // All ranks know, and leave together.
    if (prints) {
      report_error(fmt::format("--mesh: {}, but mpirun started {}", plan_text::counted_text(ranks, "rank"),
                               plan_text::counted_text(size, "process", "processes")));
    }
    throw Reported{2};
  }
  std::unique_ptr<Communicator> over_nccl;
  try {
    const Device device = device_of(process.local_rank);
    if (nccl) {
      part_hosts(process);
      kernels::use_cuda_device(device.index);
      over_nccl = make_nccl_communicator(*processes, comm_options());
    }
    body(nccl ? *over_nccl : *processes, device);
    processes->barrier("end")->wait();  // reports a rank that died or stopped with its work done
  } catch (const std::exception& error) {
    const auto* comm_error = dynamic_cast<const CommError*>(&error);
    const std::string text = comm_error != nullptr ? with_timeout(*comm_error).text : error_text(error);
    if (over_nccl != nullptr) over_nccl->abort(text);
    processes->abort(text);
    if (prints) report_error(text);
    over_nccl.reset();
    processes.reset();
    if (!prints) report_error(text);
    throw Reported{status_of(error)};
  }
}

}  // namespace muster::cli
