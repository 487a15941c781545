// One ncclComm_t, never blocking: what NCCL has not finished at once is polled for, within a deadline.
#pragma once

#include <cuda_runtime_api.h>
#include <thread>

#include "comm/nccl/nccl_api.h"
#include "comm/operation.h"

namespace muster::comm::nccl {

class Ranks {
 public:
  // All ranks call it, each with its own current device.
  Ranks(const NcclId& id, int32_t rank, int32_t size, int32_t max_blocks, Clock::time_point deadline);
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;
  ~Ranks() { end(); }

  // Enqueues a group of messages, or a sum in place; ready() says when that is done, and until then nothing else may be
  // enqueued there.
  void enqueue(std::span<const Send> sends, std::span<const Receive> receives, cudaStream_t stream);
  void enqueue_sum(int64_t* data, int64_t count, cudaStream_t stream);

  // True once all calls have been carried out on the host. Throws CommError if NCCL has met an error since.
  bool ready();
  void wait_until_ready(Clock::time_point deadline, std::string_view name);

  // Ends what is under way, so that its streams come to rest. NCCL sees to that at once, and then waits until every
  // graph that holds operations of this communicator is gone: in a thread of its own, or those graphs would never go.
  void abort();
  // Gives it back in peace, if all ranks do so before the deadline; otherwise aborts.
  void close(Clock::time_point deadline);

 private:
  void check(ncclResult_t result, const char* call) const;
  void end();

  ncclComm_t comm_ = nullptr;
  int device_ = 0;
  std::thread aborting_;
};

}  // namespace muster::comm::nccl
