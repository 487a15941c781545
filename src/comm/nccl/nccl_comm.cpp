#include "comm/nccl/nccl_comm.h"

#include <cstring>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "comm/backoff.h"
#include "comm/nccl/nccl_library.h"
#include "muster/error.h"

namespace muster::comm::nccl {

namespace {

ncclConfig_t make_config(int32_t max_blocks) {
  ncclConfig_t config;
  config.blocking = 0;
  if (max_blocks > 0) config.maxCTAs = max_blocks;
  return config;
}

}  // namespace

NcclComm::NcclComm(const NcclId& id, int32_t rank, int32_t size, int32_t max_blocks, Clock::time_point deadline) {
  cudaGetDevice(&device_);
  ncclUniqueId unique = {};
  static_assert(sizeof unique.internal == sizeof id.bytes);
  std::memcpy(unique.internal, id.bytes.data(), sizeof unique.internal);
  ncclConfig_t config = make_config(max_blocks);
  try {
    check(library().comm_init_rank_config(&comm_, size, unique, rank, &config), "ncclCommInitRankConfig");
    wait_until_ready(deadline, fmt::format("make_nccl_communicator: rank {} of {}", rank, size));
  } catch (...) {
    end();
    throw;
  }
}

void NcclComm::enqueue(std::span<const Send> sends, std::span<const Receive> receives, cudaStream_t stream) {
  const Library& nccl = library();
  check(nccl.group_start(), "ncclGroupStart");
  ncclResult_t result = ncclSuccess;
  const auto keep = [&](ncclResult_t next) {
    if (result == ncclSuccess && next != ncclInProgress) result = next;
  };
  for (const Send& send : sends) {
    keep(nccl.send(send.data, static_cast<size_t>(send.bytes), ncclInt8, send.peer, comm_, stream));
  }
  for (const Receive& receive : receives) {
    keep(nccl.recv(receive.data, static_cast<size_t>(receive.bytes), ncclInt8, receive.peer, comm_, stream));
  }
  // Also after an error: a group that stays open would swallow all later calls of this thread.
  const ncclResult_t end = nccl.group_end();
  check(result, "ncclSend, ncclRecv");
  check(end, "ncclGroupEnd");
}

void NcclComm::enqueue_sum(int64_t* data, int64_t count, cudaStream_t stream) {
  check(library().all_reduce(data, data, static_cast<size_t>(count), ncclInt64, ncclSum, comm_, stream),
        "ncclAllReduce");
}

bool NcclComm::ready() {
  ncclResult_t state = ncclSuccess;
  check(library().comm_get_async_error(comm_, &state), "ncclCommGetAsyncError");
  check(state, "NCCL");
  return state == ncclSuccess;
}

void NcclComm::wait_until_ready(Clock::time_point deadline, std::string_view name) {
  for (Backoff backoff; !ready(); backoff.pause()) {
    if (Clock::now() < deadline) continue;
    throw CommError({fmt::format("{}: not all ranks arrived within the timeout", name), ErrorCode::kRankMissing});
  }
}

void NcclComm::abort() {
  ncclComm_t comm = std::exchange(comm_, nullptr);
  if (comm == nullptr) return;
  aborting_ = std::thread([comm, device = device_] {
    cudaSetDevice(device);
    library().comm_abort(comm);
  });
}

void NcclComm::end() {
  abort();
  if (aborting_.joinable()) aborting_.join();
}

void NcclComm::close(Clock::time_point deadline) try {
  if (!comm_) return;
  check(library().comm_finalize(comm_), "ncclCommFinalize");
  wait_until_ready(deadline, "ncclCommFinalize");
  library().comm_destroy(std::exchange(comm_, nullptr));
} catch (const CommError&) {
  abort();
}

void NcclComm::check(ncclResult_t result, const char* call) const {
  if (result == ncclSuccess || result == ncclInProgress) return;
  const char* last = library().get_last_error(comm_);
  std::string more = last ? last : "";
  std::replace(more.begin(), more.end(), '\n', ' ');
  throw CommError(fmt::format("{}: {}{}{}", call, library().get_error_string(result), more.empty() ? "" : ": ", more));
}

}  // namespace muster::comm::nccl
