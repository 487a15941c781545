// How the ranks of a command run: as threads of this process, or as the processes that mpirun started; on which device.
#pragma once

#include <exception>
#include <functional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "muster/communicator.h"
#include "muster/error.h"
#include "muster/optimizer.h"

namespace muster::cli {

// The error was printed, by the rank that prints; the process is to end with this status.
struct Reported {
  int status = 1;
};

// This process among those that mpirun started, read from the environment without calling MPI.
struct Process {
  int rank = 0;
  int count = 0;  // 0: nobody ran mpirun
  // Among those of its node.
  int local_rank = 0;
  int local_count = 1;
};
Process this_process();

// One line on stderr, once for all processes: rank 0 prints. Another rank waits first; as soon as rank 0 has failed
// too, mpirun ends it. If nothing does, the error is its alone, and it prints.
void report_error(std::string_view message);

class Ranks {
 public:
  // `threads` says how many each rank has where --threads is not given.
  void add_to(CLI::App& command, const std::string& threads = "1");
  // Throws InvalidArgument for what is not built in or makes no sense here.
  void check() const;

  std::string_view comm() const;    // "local", "mpi" or "nccl"
  std::string_view device() const;  // "cpu" or "cuda"
  bool cuda() const { return device() == "cuda"; }
  int threads(int otherwise = 1) const;  // of each rank; `otherwise` where nothing is said
  CostTable cost() const;                // the built-in one that plans there go by
  Device::Kind kind() const { return cuda() ? Device::Kind::kCuda : Device::Kind::kCpu; }
  // Whether steps there can be recorded and replayed: exchanges that pass through the host cannot.
  bool can_record(int32_t ranks) const { return cuda() && (ranks == 1 || comm() == "nccl"); }
  std::vector<bool> parse_graph(std::string_view text) const;  // what --graph says; throws InvalidArgument
  // This process holds rank 0, which alone may write to stdout and stderr.
  bool prints() const { return this_process().rank == 0; }

  // The ranks of `ranks` that this process runs, ascending.
  std::vector<int32_t> here(int32_t ranks) const;
  // The device of a rank that is a thread here.
  Device device_of(int rank) const;

  // Runs body for every rank: all of them here, each in a thread, or the one that this process is; GPUs are dealt out
  // in turn. `ranks` 0 stands for as many as mpirun started, else 2, on a GPU 1. What one rank throws ends all; the
  // first error is thrown or, where ranks are processes, printed.
  using Body = std::function<void(Communicator&, const Device&)>;
  void run(int32_t ranks, const Body& body) const;

 private:
  CommOptions comm_options() const;
  // The error, with --timeout at its end if it is a timeout.
  Failure with_timeout(const CommError& error) const;
  std::unique_ptr<Communicator> start_mpi() const;
  void run_threads(int32_t ranks, const Body& body) const;
  void run_process(int32_t ranks, const Body& body) const;

  std::string comm_;
  std::string device_;
  std::string threads_;
  std::string timeout_;
};

}  // namespace muster::cli
