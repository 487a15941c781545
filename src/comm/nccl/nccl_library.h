// libnccl, opened when it is first needed: one binary runs with and without it, and shares the copy that is loaded
// already, as PyTorch's.
#pragma once

#include <nccl.h>
#include <string>

namespace muster::comm::nccl {

struct Library {
  decltype(&ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&ncclCommInitRankConfig) comm_init_rank_config = nullptr;
  decltype(&ncclCommFinalize) comm_finalize = nullptr;
  decltype(&ncclCommDestroy) comm_destroy = nullptr;
  decltype(&ncclCommAbort) comm_abort = nullptr;
  decltype(&ncclCommGetAsyncError) comm_get_async_error = nullptr;
  decltype(&ncclGetErrorString) get_error_string = nullptr;
  decltype(&ncclGetLastError) get_last_error = nullptr;
  decltype(&ncclGroupStart) group_start = nullptr;
  decltype(&ncclGroupEnd) group_end = nullptr;
  decltype(&ncclSend) send = nullptr;
  decltype(&ncclRecv) recv = nullptr;
  decltype(&ncclAllReduce) all_reduce = nullptr;

  std::string missing;  // why it cannot be used; empty if it can
};

// Never fails; see `missing`.
const Library& find_library();
// Throws CommError if it cannot be used.
const Library& library();

}  // namespace muster::comm::nccl
