// The MPI library of this process: its start, its end and its errors.
#pragma once

#include <mpi.h>
#include <string>
#include <string_view>

namespace muster::comm::mpi {

// Initializes MPI unless the program has; then it is finalized at exit, if no communicator is open.
void initialize();
bool finalized();

// Counts a communicator that is in use. One that failed stays open for good, and so MPI is not finalized: that would
// wait for the lost rank, and without it mpirun sees that the process did not end well.
void opened();
void closed();

std::string error_text(int code);
// Throws CommError unless the code is MPI_SUCCESS. `call` as in "MPI_Isend".
void check(int code, std::string_view call);

}  // namespace muster::comm::mpi
