// Which communication libraries this build uses, and what it finds of them.
#pragma once

#include <string>

namespace muster::comm {

struct NcclInfo {
  bool built_in = false;
  std::string version{};  // of the libnccl that is used; empty if there is none
  std::string missing{};  // why it cannot be used; empty if it can
};

struct MpiInfo {
  bool built_in = false;
  std::string version{};  // as the library names itself
};

// Opens libnccl, for good. Never throws.
NcclInfo nccl_info();
MpiInfo mpi_info();

}  // namespace muster::comm
