// libnccl, opened when it is first needed: one binary runs with and without it, and shares the copy that is loaded
// already, as PyTorch's.
#pragma once

#include <string>

#include "comm/nccl/nccl_api.h"

namespace muster::comm::nccl {

struct Library : Functions {
  std::string missing;  // why it cannot be used; empty if it can
};

// Never fails; see `missing`.
const Library& find_library();
// Throws CommError if it cannot be used.
const Library& library();

}  // namespace muster::comm::nccl
