// A communicator that is another one, for whoever changes something about it.
#pragma once

#include <memory>
#include <utility>

#include "muster/communicator.h"

namespace muster::test {

class ForwardingCommunicator : public Communicator {
 public:
  explicit ForwardingCommunicator(std::unique_ptr<Communicator> inner) : inner_(std::move(inner)) {}

  int32_t rank() const override { return inner_->rank(); }
  int32_t size() const override { return inner_->size(); }
  std::chrono::milliseconds timeout() const override { return inner_->timeout(); }

  std::unique_ptr<Request> exchange(std::span<const Send> sends, std::span<const Receive> receives,
                                    std::string_view label) override {
    return inner_->exchange(sends, receives, label);
  }
  std::unique_ptr<Request> all_gather(const void* mine, void* all, int64_t bytes, std::string_view label) override {
    return inner_->all_gather(mine, all, bytes, label);
  }
  std::unique_ptr<Request> reduce_scatter(const float* all, float* mine, std::span<const int64_t> parts, ReduceOp op,
                                          std::string_view label) override {
    return inner_->reduce_scatter(all, mine, parts, op, label);
  }
  std::unique_ptr<Request> all_reduce(std::span<float> data, ReduceOp op, std::string_view label) override {
    return inner_->all_reduce(data, op, label);
  }
  std::unique_ptr<Request> all_reduce(std::span<double> data, ReduceOp op, std::string_view label) override {
    return inner_->all_reduce(data, op, label);
  }
  std::unique_ptr<Request> all_reduce(std::span<int64_t> data, ReduceOp op, std::string_view label) override {
    return inner_->all_reduce(data, op, label);
  }
  std::unique_ptr<Request> broadcast(void* data, int64_t bytes, int32_t root, std::string_view label) override {
    return inner_->broadcast(data, bytes, root, label);
  }
  std::unique_ptr<Request> barrier(std::string_view label) override { return inner_->barrier(label); }
  void abort(std::string_view reason) override { inner_->abort(reason); }

 protected:
  Communicator& inner() { return *inner_; }

 private:
  std::unique_ptr<Communicator> inner_;
};

}  // namespace muster::test
