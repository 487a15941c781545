#include "ranks.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <thread>

#include <fmt/format.h>

#include "arguments.h"
#include "muster/error.h"

namespace muster::cli {
namespace {

// One rank alone may compute for long while the others wait for it.
const CommOptions kCommOptions{std::chrono::hours(1)};
constexpr int32_t kDefaultRanks = 2;

int from_environment(std::initializer_list<const char*> names, int otherwise) {
  for (const char* name : names) {
    const char* text = std::getenv(name);
    if (text != nullptr && *text != '\0') return std::atoi(text);
  }
  return otherwise;
}

void run_local(int32_t ranks, const std::function<void(Communicator&)>& body) {
  std::vector<std::unique_ptr<Communicator>> communicators = make_local_communicators(ranks, kCommOptions);
  std::mutex mutex;
  std::exception_ptr first;  // the others are told of it, and fail too
  const auto run_rank = [&](int32_t rank) {
    const std::unique_ptr<Communicator> mine = std::move(communicators[static_cast<size_t>(rank)]);
    try {
      body(*mine);
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
  if (first != nullptr) std::rethrow_exception(first);
}

int status_of(const std::exception& error) { return dynamic_cast<const InvalidArgument*>(&error) != nullptr ? 2 : 1; }

void run_mpi(int32_t ranks, const std::function<void(Communicator&)>& body) {
  std::unique_ptr<Communicator> communicator = make_mpi_communicator(kCommOptions);
  const int32_t size = communicator->size();
  const bool prints = communicator->rank() == 0;
  // Rank 0 prints before it leaves: mpirun ends what still runs as soon as one process has failed.
  if (ranks != 0 && size != ranks) {
    // All ranks know, and leave together.
    if (prints) {
      report_error(
          fmt::format("--mesh: {} ranks, but mpirun started {} process{}", ranks, size, size == 1 ? "" : "es"));
    }
    throw Reported{2};
  }
  try {
    body(*communicator);
  } catch (const std::exception& error) {
    communicator->abort(error.what());
    if (prints) report_error(error.what());
    communicator.reset();
    if (!prints) report_error(error.what());
    throw Reported{status_of(error)};
  }
}

}  // namespace

Process this_process() {
  return {from_environment({"OMPI_COMM_WORLD_RANK", "PMI_RANK"}, 0),
          from_environment({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}, 0)};
}

void report_error(std::string_view message) {
  using std::chrono::milliseconds;
  const int rank = this_process().rank;
  if (rank != 0) std::this_thread::sleep_for(milliseconds(3000 + 200 * rank));
  fmt::print(stderr, "muster: error: {}\n", one_line(message));
  std::fflush(stderr);
}

void Ranks::add_to(CLI::App& command) {
  command.add_option("--comm", comm_, "local: ranks are threads; mpi: processes of mpirun (default: mpi under mpirun)")
      ->type_name("C");
  command.add_option("--device", device_, "cpu (default)")->type_name("D");
  command.add_option("--threads", threads_, "Threads of each rank (default 1)")->type_name("T");
}

void Ranks::check() const {
  if (!device_.empty() && device_ != "cpu") {
    throw InvalidArgument(fmt::format("--device: \"{}\" is not built in; there is cpu", device_));
  }
  if (!comm_.empty() && comm_ != "local" && comm_ != "mpi") {
    throw InvalidArgument(fmt::format("--comm: \"{}\" is not built in; there is local and mpi", comm_));
  }
  if (comm() == "mpi" && !mpi_available()) throw InvalidArgument("--comm: \"mpi\" is not built in");
  if (comm() == "local" && this_process().count > 1) {
    throw InvalidArgument(
        fmt::format("--comm: \"local\" under mpirun would do everything {} times", this_process().count));
  }
  threads();
}

std::string_view Ranks::comm() const {
  if (!comm_.empty()) return comm_;
  return this_process().count > 0 ? "mpi" : "local";
}

int Ranks::threads() const {
  return threads_.empty() ? 1 : static_cast<int>(parse_integer("--threads", threads_, {1, 1024}));
}

void Ranks::run(int32_t ranks, const std::function<void(Communicator&)>& body) const {
  if (comm() == "mpi") {
    run_mpi(ranks, body);
  } else {
    run_local(ranks == 0 ? kDefaultRanks : ranks, body);
  }
}

}  // namespace muster::cli
