// Exchanges of a device over a communicator that reaches host memory only: messages are copied through the host and
// have arrived when a call returns. For one rank, for tests, and for communicators without a device path.
#pragma once

#include <span>
#include <string_view>
#include <thread>
#include <vector>

#include "kernels/kernels.h"
#include "muster/communicator.h"

namespace muster::engine {

class HostBridge final : public StreamCommunicator {
 public:
  HostBridge(Communicator& communicator, kernels::Kernels& kernels) : communicator_(communicator), kernels_(kernels) {}

  void exchange(std::span<const Send> sends, std::span<const Receive> receives, std::string_view label,
                void*) override {
    std::vector<std::vector<std::byte>> copies;
    std::vector<Send> out;
    std::vector<Receive> in;
    const auto staged = [&](int64_t bytes) { return copies.emplace_back(static_cast<size_t>(bytes)).data(); };
    for (const Send& send : sends) {
      out.push_back({send.peer, staged(send.bytes), send.bytes});
      kernels_.read(copies.back().data(), send.data, {1, send.bytes, 0, 0});
    }
    for (const Receive& receive : receives) in.push_back({receive.peer, staged(receive.bytes), receive.bytes});
    communicator_.exchange(out, in, label)->wait();
    for (size_t i = 0; i < receives.size(); ++i) {
      kernels_.write(receives[i].data, in[i].data, {1, receives[i].bytes, 0, 0});
    }
  }

  void all_reduce(int64_t* data, int64_t count, std::string_view label, void*) override {
    std::vector<int64_t> words(static_cast<size_t>(count));
    const kernels::HostRows rows{1, count * 8, 0, 0};
    kernels_.read(words.data(), data, rows);
    communicator_.all_reduce(std::span<int64_t>(words), ReduceOp::kSum, label)->wait();
    kernels_.write(data, words.data(), rows);
  }

  void watch(const std::function<bool()>& done, std::string_view) override {
    while (!done()) std::this_thread::yield();  // a sleeping thread would begin the next step late
  }

 private:
  Communicator& communicator_;
  kernels::Kernels& kernels_;
};

}  // namespace muster::engine
