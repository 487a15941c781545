#include "comm/mpi/mpi_communicator.h"

#include <fmt/format.h>

#include "comm/mpi/mpi_world.h"
#include "muster/error.h"

namespace muster::comm::mpi {

std::unique_ptr<Communicator> make_communicator(const CommOptions& options, const Limits& limits) {
  check_options(options);
  if (limits.piece_bytes < 1 || limits.piece_bytes > INT32_MAX) {
    throw InvalidArgument(fmt::format("make_mpi_communicator: pieces of {} bytes", limits.piece_bytes));
  }
  if (limits.sequence_bits != 0 && (limits.sequence_bits < 8 || limits.sequence_bits > 14)) {
    throw InvalidArgument(fmt::format("make_mpi_communicator: {} bits for numbers", limits.sequence_bits));
  }
  return std::make_unique<WorldCommunicator<World>>(std::make_shared<World>(options, limits));
}

}  // namespace muster::comm::mpi

namespace muster {

bool mpi_available() { return true; }

std::unique_ptr<Communicator> make_mpi_communicator(const CommOptions& options) {
  return comm::mpi::make_communicator(options, {});
}

}  // namespace muster
