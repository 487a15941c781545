// A communicator whose messages somebody changes on their way.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "support/forwarding.h"

namespace muster::test {

class TamperingCommunicator final : public ForwardingCommunicator {
 public:
  // Given the label of an exchange, the peer and a copy of what is sent to it.
  using Change = std::function<void(std::string_view label, int32_t peer, std::span<std::byte> message)>;

  TamperingCommunicator(std::unique_ptr<Communicator> inner, Change change)
      : ForwardingCommunicator(std::move(inner)), change_(std::move(change)) {}

  std::unique_ptr<Request> exchange(std::span<const Send> sends, std::span<const Receive> receives,
                                    std::string_view label) override {
    std::vector<Send> changed(sends.begin(), sends.end());
    for (Send& send : changed) {
      const auto* const data = static_cast<const std::byte*>(send.data);
      kept_.push_back(std::make_unique<std::vector<std::byte>>(data, data + send.bytes));
      change_(label, send.peer, *kept_.back());
      send.data = kept_.back()->data();
    }
    return inner().exchange(changed, receives, label);
  }

 private:
  Change change_;
  std::vector<std::unique_ptr<std::vector<std::byte>>> kept_;
};

}  // namespace muster::test
