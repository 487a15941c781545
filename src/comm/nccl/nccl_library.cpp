#include "comm/nccl/nccl_library.h"

#include <dlfcn.h>

#include <fmt/format.h>

#include "comm/backend_info.h"
#include "muster/error.h"

namespace muster::comm {
namespace nccl {

namespace {

template <typename Function>
void find(void* handle, const char* name, Library& library, Function Functions::*function) {
  library.*function = reinterpret_cast<Function>(dlsym(handle, name));
  if (!(library.*function) && library.missing.empty()) library.missing = std::string("libnccl.so.2 has no ") + name;
}

Library open_library() {
  Library library;
  void* handle = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);  // kept for good: NCCL has threads
  if (!handle) {
    const char* why = dlerror();
    library.missing = why ? why : "libnccl.so.2 cannot be opened";
    return library;
  }
  find(handle, "ncclGetVersion", library, &Functions::get_version);
  find(handle, "ncclGetUniqueId", library, &Functions::get_unique_id);
  find(handle, "ncclCommInitRankConfig", library, &Functions::comm_init_rank_config);
  find(handle, "ncclCommFinalize", library, &Functions::comm_finalize);
  find(handle, "ncclCommDestroy", library, &Functions::comm_destroy);
  find(handle, "ncclCommAbort", library, &Functions::comm_abort);
  find(handle, "ncclCommGetAsyncError", library, &Functions::comm_get_async_error);
  find(handle, "ncclGetErrorString", library, &Functions::get_error_string);
  find(handle, "ncclGetLastError", library, &Functions::get_last_error);
  find(handle, "ncclGroupStart", library, &Functions::group_start);
  find(handle, "ncclGroupEnd", library, &Functions::group_end);
  find(handle, "ncclSend", library, &Functions::send);
  find(handle, "ncclRecv", library, &Functions::recv);
  find(handle, "ncclAllReduce", library, &Functions::all_reduce);
  return library;
}

}  // namespace

const Library& find_library() {
  static const Library library = open_library();
  return library;
}

const Library& library() {
  const Library& found = find_library();
  if (!found.missing.empty()) throw CommError("NCCL is not there: " + found.missing);
  return found;
}

}  // namespace nccl

NcclInfo nccl_info() {
  const nccl::Library& library = nccl::find_library();
  int version = 0;  // 22809: 2.28.9
  if (!library.missing.empty() || library.get_version(&version) != nccl::ncclSuccess) {
    return {.built_in = true, .missing = library.missing};
  }
  return {.built_in = true, .version = fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100)};
}

}  // namespace muster::comm
