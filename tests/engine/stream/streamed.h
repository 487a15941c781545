// Ranks whose exchanges are enqueued on the streams of tests/engine/stream, as NCCL's are on those of a GPU.
#pragma once

#include <string>
#include <thread>
#include <vector>

#include "engine/stream/host_queue.h"
#include "muster/error.h"
#include "support/forwarding.h"

namespace muster::test {

class StreamedCommunicator final : public ForwardingCommunicator, public StreamCommunicator {
 public:
  using ForwardingCommunicator::all_reduce;
  using ForwardingCommunicator::exchange;
  using ForwardingCommunicator::ForwardingCommunicator;

  StreamCommunicator* on_stream() override { return this; }

  void exchange(std::span<const Send> sends, std::span<const Receive> receives, std::string_view label,
                void* stream) override {
    on(stream).add([this, sends = std::vector(sends.begin(), sends.end()),
                    receives = std::vector(receives.begin(), receives.end()),
                    label = std::string(label)] { inner().exchange(sends, receives, label)->wait(); });
  }
  void all_reduce(int64_t* data, int64_t count, std::string_view label, void* stream) override {
    on(stream).add([this, words = std::span(data, static_cast<size_t>(count)), label = std::string(label)] {
      inner().all_reduce(words, ReduceOp::kSum, label)->wait();
    });
  }
  void watch(const std::function<bool()>& done, std::string_view) override {
    while (!done()) std::this_thread::sleep_for(std::chrono::microseconds(20));
    const std::string error = queue_ == nullptr ? "" : queue_->error();
    if (!error.empty()) throw CommError(error);
  }

 private:
  HostQueue& on(void* stream) {
    queue_ = static_cast<HostQueue*>(stream);
    return *queue_;
  }

  HostQueue* queue_ = nullptr;
};

}  // namespace muster::test
