// One non-blocking ncclComm_t: calls that NCCL does not finish at once are polled, until a deadline.
#pragma once

#include <cuda_runtime_api.h>
#include <thread>

#include "comm/nccl/nccl_api.h"
#include "comm/operation.h"

namespace muster::comm::nccl {

class NcclComm {
 public:
  // Collective: all ranks call it, each with its own current device.
  NcclComm(const NcclId& id, int32_t rank, int32_t size, int32_t max_blocks, Clock::time_point deadline);
  NcclComm(const NcclComm&) = delete;
  NcclComm& operator=(const NcclComm&) = delete;
  ~NcclComm() { end(); }

  // Enqueues a group of messages, or a sum in place. Until ready() is true nothing else may be enqueued.
  void enqueue(std::span<const Send> sends, std::span<const Receive> receives, cudaStream_t stream);
  void enqueue_sum(int64_t* data, int64_t count, cudaStream_t stream);

  // True once all calls have been carried out on the host. Throws CommError if NCCL has met an error since.
  bool ready();
  void wait_until_ready(Clock::time_point deadline, std::string_view name);

  // Ends operations in flight, so that streams can be synchronized. NCCL does so at once and then waits until every
  // graph with operations of this communicator is destroyed; it waits in its own thread, because the caller destroys
  // those graphs.
  void abort();
  // Destroys the communicator if all ranks do so before the deadline; otherwise aborts.
  void close(Clock::time_point deadline);

 private:
  void check(ncclResult_t result, const char* call) const;
  void end();

  ncclComm_t comm_ = nullptr;
  int device_ = 0;
  std::thread aborting_;
};

}  // namespace muster::comm::nccl
