// A communicator whose messages somebody changes on their way.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "muster/communicator.h"

namespace muster::test {

class TamperingCommunicator final : public Communicator {
 public:
  // Given the label of an exchange, the peer and a copy of what is sent to it.
  using Change = std::function<void(std::string_view label, int32_t peer, std::span<std::byte> message)>;

  TamperingCommunicator(std::unique_ptr<Communicator> inner, Change change)
      : inner_(std::move(inner)), change_(std::move(change)) {}

  int32_t rank() const override { return inner_->rank(); }
  int32_t size() const override { return inner_->size(); }
  std::chrono::milliseconds timeout() const override { return inner_->timeout(); }

  std::unique_ptr<Request> exchange(std::span<const Send> sends, std::span<const Receive> receives,
                                    std::string_view label) override {
    std::vector<Send> changed(sends.begin(), sends.end());
    for (Send& send : changed) {
      const auto* const data = static_cast<const std::byte*>(send.data);
      kept_.push_back(std::make_unique<std::vector<std::byte>>(data, data + send.bytes));
      change_(label, send.peer, *kept_.back());
      send.data = kept_.back()->data();
    }
    return inner_->exchange(changed, receives, label);
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

 private:
  std::unique_ptr<Communicator> inner_;
  Change change_;
  std::vector<std::unique_ptr<std::vector<std::byte>>> kept_;
};

}  // namespace muster::test
