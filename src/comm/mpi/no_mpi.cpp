// Stands in for this folder where MPI is not built in.
#include "comm/backend_info.h"
#include "muster/communicator.h"
#include "muster/error.h"

namespace muster {

namespace comm {

MpiInfo mpi_info() { return {}; }

}  // namespace comm

bool mpi_available() { return false; }

std::unique_ptr<Communicator> make_mpi_communicator(const CommOptions&) {
  throw CommError("make_mpi_communicator: MPI was not found when Muster was built");
}

}  // namespace muster
