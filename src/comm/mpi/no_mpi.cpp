// Stands in for this folder where MPI is not built in.
#include "muster/communicator.h"
#include "muster/error.h"

namespace muster {

bool mpi_available() { return false; }

std::unique_ptr<Communicator> make_mpi_communicator(const CommOptions&) {
  throw CommError("make_mpi_communicator: MPI was not found when Muster was built");
}

}  // namespace muster
