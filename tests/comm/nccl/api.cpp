// Compares src/comm/nccl/nccl_api.h with NVIDIA's nccl.h, at compile time.
#include <cstddef>
#include <nccl.h>
#include <type_traits>

#include "comm/nccl/nccl_api.h"

namespace {

namespace ours = muster::comm::nccl;

// True if a caller passes both in the same way: the same type, pointers, enumerations or structures of one size.
template <typename A, typename B>
struct Same : std::bool_constant<std::is_same_v<A, B> || (std::is_pointer_v<A> && std::is_pointer_v<B>) ||
                                 (std::is_enum_v<A> && std::is_enum_v<B> && sizeof(A) == sizeof(B)) ||
                                 (std::is_class_v<A> && std::is_class_v<B> && sizeof(A) == sizeof(B))> {};

template <typename ResultA, typename... A, typename ResultB, typename... B>
struct Same<ResultA (*)(A...), ResultB (*)(B...)> {
  static constexpr bool arguments() {
    if constexpr (sizeof...(A) == sizeof...(B)) return (Same<A, B>::value && ...);
    return false;
  }
  static constexpr bool value = Same<ResultA, ResultB>::value && arguments();
};

#define SAME_FUNCTION(ours_name, theirs) \
  static_assert(Same<decltype(ours::Functions::ours_name), decltype(&::theirs)>::value)
SAME_FUNCTION(get_version, ncclGetVersion);
SAME_FUNCTION(get_unique_id, ncclGetUniqueId);
SAME_FUNCTION(comm_init_rank_config, ncclCommInitRankConfig);
SAME_FUNCTION(comm_finalize, ncclCommFinalize);
SAME_FUNCTION(comm_destroy, ncclCommDestroy);
SAME_FUNCTION(comm_abort, ncclCommAbort);
SAME_FUNCTION(comm_get_async_error, ncclCommGetAsyncError);
SAME_FUNCTION(get_error_string, ncclGetErrorString);
SAME_FUNCTION(get_last_error, ncclGetLastError);
SAME_FUNCTION(group_start, ncclGroupStart);
SAME_FUNCTION(group_end, ncclGroupEnd);
SAME_FUNCTION(send, ncclSend);
SAME_FUNCTION(recv, ncclRecv);
SAME_FUNCTION(all_reduce, ncclAllReduce);

#define SAME_VALUE(name) static_assert(static_cast<int>(ours::name) == static_cast<int>(::name))
SAME_VALUE(ncclSuccess);
SAME_VALUE(ncclUnhandledCudaError);
SAME_VALUE(ncclSystemError);
SAME_VALUE(ncclInternalError);
SAME_VALUE(ncclInvalidArgument);
SAME_VALUE(ncclInvalidUsage);
SAME_VALUE(ncclRemoteError);
SAME_VALUE(ncclInProgress);
SAME_VALUE(ncclSum);
SAME_VALUE(ncclInt8);
SAME_VALUE(ncclInt64);

static_assert(sizeof(ours::ncclUniqueId) == sizeof(::ncclUniqueId));
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)  // older ones have fewer fields
#define SAME_FIELD(name) static_assert(offsetof(ours::ncclConfig_t, name) == offsetof(::ncclConfig_t, name))
SAME_FIELD(size);
SAME_FIELD(magic);
SAME_FIELD(version);
SAME_FIELD(blocking);
SAME_FIELD(cgaClusterSize);
SAME_FIELD(minCTAs);
SAME_FIELD(maxCTAs);
SAME_FIELD(netName);
SAME_FIELD(splitShare);
SAME_FIELD(trafficClass);
SAME_FIELD(commName);
SAME_FIELD(collnetEnable);
SAME_FIELD(CTAPolicy);
SAME_FIELD(shrinkShare);
SAME_FIELD(nvlsCTAs);
SAME_FIELD(nChannelsPerNetPeer);
SAME_FIELD(nvlinkCentricSched);
constexpr ::ncclConfig_t kTheirs = NCCL_CONFIG_INITIALIZER;
static_assert(ours::ncclConfig_t{}.magic == kTheirs.magic && ours::ncclConfig_t{}.blocking == kTheirs.blocking);
#endif
#if NCCL_VERSION_CODE == 22809
static_assert(sizeof(ours::ncclConfig_t) == sizeof(::ncclConfig_t) && ours::ncclConfig_t{}.version == kTheirs.version);
#endif

}  // namespace
