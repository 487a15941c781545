// All collectives from point-to-point messages: what a backend derives from.
//
// Reductions gather every rank's contribution and sum in the order of the ranks, so the bits are the same everywhere.
// That moves ranks x bytes, which is meant for control data and for reduce_scatter's already small parts.
#pragma once

#include "comm/operation.h"

namespace muster::comm {

class Collectives : public Communicator {
 public:
  std::unique_ptr<Request> exchange(std::span<const Send> sends, std::span<const Receive> receives,
                                    std::string_view label) final;
  std::unique_ptr<Request> all_gather(const void* mine, void* all, int64_t bytes, std::string_view label) final;
  std::unique_ptr<Request> reduce_scatter(const float* all, float* mine, std::span<const int64_t> parts, ReduceOp op,
                                          std::string_view label) final;
  std::unique_ptr<Request> all_reduce(std::span<float> data, ReduceOp op, std::string_view label) final;
  std::unique_ptr<Request> all_reduce(std::span<double> data, ReduceOp op, std::string_view label) final;
  std::unique_ptr<Request> all_reduce(std::span<int64_t> data, ReduceOp op, std::string_view label) final;
  std::unique_ptr<Request> broadcast(void* data, int64_t bytes, int32_t root, std::string_view label) final;
  std::unique_ptr<Request> barrier(std::string_view label) final;

 protected:
  // Starts the messages of this rank's next operation. Every rank posts the same names in the same order, and the
  // backend fails where it sees that they do not. Throws CommError if the communicator is dead.
  virtual std::unique_ptr<Request> post(Posting posting) = 0;
  // The message to oneself.
  virtual void copy(void* to, const void* from, int64_t bytes);

 private:
  // Checks the messages and copies the one to oneself.
  std::unique_ptr<Request> start(std::string_view kind, std::string_view label, std::span<const Send> sends,
                                 std::span<const Receive> receives);
  template <typename T>
  std::unique_ptr<Request> reduce(std::span<T> data, ReduceOp op, std::string_view label);
};

}  // namespace muster::comm
