// The MPI backend beyond its public factory: what tests lower to reach paths that need huge messages.
#pragma once

#include "muster/communicator.h"

namespace muster::comm::mpi {

struct Limits {
  // A message of this many bytes or more goes in pieces: MPI counts in int.
  int64_t piece_bytes = int64_t{1} << 30;
  // Bits of a tag for the number of its operation, 8 at least; 0: half of what MPI's largest tag allows.
  int32_t sequence_bits = 0;
};

std::unique_ptr<Communicator> make_communicator(const CommOptions& options, const Limits& limits);

}  // namespace muster::comm::mpi
