// The NCCL backend beyond its public factories: what tests lower to reach paths that need large messages.
#pragma once

#include "muster/communicator.h"

namespace muster::comm::nccl {

struct Limits {
  // Bytes of pinned memory for messages out, and as many for messages in. Longer messages go in pieces. The same on
  // all ranks.
  int64_t staging_bytes = int64_t{1} << 24;
};

NcclId make_id();
std::unique_ptr<Communicator> make_communicator(const NcclId& id, int32_t rank, int32_t size,
                                                const CommOptions& options, const Limits& limits);
std::unique_ptr<Communicator> make_communicator(Communicator& others, const CommOptions& options, const Limits& limits);

}  // namespace muster::comm::nccl
