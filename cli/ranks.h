// How the ranks of a command run: as threads of this process, or as the processes that mpirun started.
#pragma once

#include <functional>
#include <string>

#include <CLI/CLI.hpp>

#include "muster/communicator.h"

namespace muster::cli {

// The error was printed, by the rank that prints; the process is to end with this status.
struct Reported {
  int status = 1;
};

// Of the processes that mpirun started, from the environment: MPI is not touched.
struct Process {
  int rank = 0;
  int count = 0;  // 0: nobody ran mpirun
};
Process this_process();

// One line on stderr, once for all processes: rank 0 prints. Another rank waits first; as soon as rank 0 has failed
// too, mpirun ends it. If nothing does, the error is its alone, and it prints.
void report_error(std::string_view message);

class Ranks {
 public:
  void add_to(CLI::App& command);
  // Throws InvalidArgument for what is not built in or makes no sense here.
  void check() const;

  std::string_view comm() const;  // "local" or "mpi"
  int threads() const;            // of each rank
  // This process holds rank 0, which alone may write to stdout and stderr.
  bool prints() const { return this_process().rank == 0; }

  // Runs body for every rank: all of them here, each in a thread, or the one that this process is. `ranks` 0 stands for
  // as many as mpirun started, else 2. What one rank throws ends all; the first error is thrown or, over MPI, printed.
  void run(int32_t ranks, const std::function<void(Communicator&)>& body) const;

 private:
  std::string comm_;
  std::string device_;
  std::string threads_;
};

}  // namespace muster::cli
