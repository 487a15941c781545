// The part of NCCL's C interface that Muster calls, as nccl.h of NCCL 2.28.9 declares it. libnccl is opened at run
// time, so building needs no NCCL: its only packages for CUDA 13 are 200 MB, for one header. NCCL keeps this interface
// stable within libnccl.so.2; tests/comm/nccl/api.sh compares it with NVIDIA's nccl.h.
#pragma once

#include <climits>
#include <cstddef>
#include <cuda_runtime_api.h>

namespace muster::comm::nccl {

using ncclComm_t = struct ncclComm*;

struct ncclUniqueId {
  char internal[128];
};

// Enumerations have all their values: their size is part of the interface.
enum ncclResult_t {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7
};

enum ncclRedOp_t { ncclSum = 0, ncclMaxRedOp = INT_MAX };

enum ncclDataType_t { ncclInt8 = 0, ncclInt64 = 4, ncclNumTypes = 12 };

// A libnccl that knows fewer fields ignores the rest; one that knows more reads `size` and fills in defaults.
struct ncclConfig_t {
  static constexpr int kUndefined = INT_MIN;

  size_t size = sizeof(ncclConfig_t);
  unsigned magic = 0xcafebeef;
  unsigned version = 22809;
  int blocking = kUndefined;
  int cgaClusterSize = kUndefined;
  int minCTAs = kUndefined;
  int maxCTAs = kUndefined;
  const char* netName = nullptr;
  int splitShare = kUndefined;
  int trafficClass = kUndefined;
  const char* commName = nullptr;
  int collnetEnable = kUndefined;
  int CTAPolicy = kUndefined;
  int shrinkShare = kUndefined;
  int nvlsCTAs = kUndefined;
  int nChannelsPerNetPeer = kUndefined;
  int nvlinkCentricSched = kUndefined;
};

// Pointers to NCCL's functions, each named after its function.
struct Functions {
  ncclResult_t (*get_version)(int* version) = nullptr;
  ncclResult_t (*get_unique_id)(ncclUniqueId* id) = nullptr;
  ncclResult_t (*comm_init_rank_config)(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank,
                                        ncclConfig_t* config) = nullptr;
  ncclResult_t (*comm_finalize)(ncclComm_t comm) = nullptr;
  ncclResult_t (*comm_destroy)(ncclComm_t comm) = nullptr;
  ncclResult_t (*comm_abort)(ncclComm_t comm) = nullptr;
  ncclResult_t (*comm_get_async_error)(ncclComm_t comm, ncclResult_t* error) = nullptr;
  const char* (*get_error_string)(ncclResult_t result) = nullptr;
  const char* (*get_last_error)(ncclComm_t comm) = nullptr;
  ncclResult_t (*group_start)() = nullptr;
  ncclResult_t (*group_end)() = nullptr;
  ncclResult_t (*send)(const void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                       cudaStream_t stream) = nullptr;
  ncclResult_t (*recv)(void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                       cudaStream_t stream) = nullptr;
  ncclResult_t (*all_reduce)(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                             ncclComm_t comm, cudaStream_t stream) = nullptr;
};

}  // namespace muster::comm::nccl
