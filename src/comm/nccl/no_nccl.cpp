// Stands in for this folder where NCCL is not built in.
#include <string>

#include "comm/backend_info.h"
#include "muster/communicator.h"
#include "muster/error.h"

namespace muster {

namespace comm {

NcclInfo nccl_info() { return {}; }

}  // namespace comm

namespace {

[[noreturn]] void refuse(const char* function) {
  throw CommError(std::string(function) +
                  ": NCCL is not built in: it needs CUDA, and MUSTER_NCCL=ON when Muster is built");
}

}  // namespace

// [stub]
bool nccl_available() { return false; }

NcclId make_nccl_id() { refuse("make_nccl_id"); }

std::unique_ptr<Communicator> make_nccl_communicator(const NcclId&, int32_t, int32_t, const CommOptions&) {
  refuse("make_nccl_communicator");
}

std::unique_ptr<Communicator> make_nccl_communicator(Communicator&, const CommOptions&) {
  refuse("make_nccl_communicator");
}
// [/stub]

}  // namespace muster
