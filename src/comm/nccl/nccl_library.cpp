#include "comm/nccl/nccl_library.h"

#include <dlfcn.h>

#include "muster/error.h"

namespace muster::comm::nccl {

namespace {

template <typename Function>
void find(void* handle, const char* name, Library& library, Function Library::*function) {
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
  find(handle, "ncclGetUniqueId", library, &Library::get_unique_id);
  find(handle, "ncclCommInitRankConfig", library, &Library::comm_init_rank_config);
  find(handle, "ncclCommFinalize", library, &Library::comm_finalize);
  find(handle, "ncclCommDestroy", library, &Library::comm_destroy);
  find(handle, "ncclCommAbort", library, &Library::comm_abort);
  find(handle, "ncclCommGetAsyncError", library, &Library::comm_get_async_error);
  find(handle, "ncclGetErrorString", library, &Library::get_error_string);
  find(handle, "ncclGetLastError", library, &Library::get_last_error);
  find(handle, "ncclGroupStart", library, &Library::group_start);
  find(handle, "ncclGroupEnd", library, &Library::group_end);
  find(handle, "ncclSend", library, &Library::send);
  find(handle, "ncclRecv", library, &Library::recv);
  find(handle, "ncclAllReduce", library, &Library::all_reduce);
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

}  // namespace muster::comm::nccl
