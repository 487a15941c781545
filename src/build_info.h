// What this build contains and what it finds on this machine: for reports of problems.
#pragma once

#include <string>

#include "comm/backend_info.h"
#include "kernels/backend_info.h"

namespace muster {

struct BuildInfo {
  std::string version;
  kernels::CudaInfo cuda;
  comm::NcclInfo nccl;
  comm::MpiInfo mpi;
  kernels::CpuInfo cpu;
};

BuildInfo build_info();

// One JSON object. Versions are text, null where there is nothing.
std::string build_info_json(const BuildInfo& info);

}  // namespace muster
