#include "comm/nccl/nccl_streams.h"

#include <utility>

#include <fmt/format.h>

#include "comm/backoff.h"
#include "muster/error.h"

namespace muster::comm::nccl {

Streams::Streams(std::shared_ptr<World> world) : world_(std::move(world)) {}

void Streams::exchange(std::span<const Send> sends, std::span<const Receive> receives, std::string_view label,
                       void* stream) {
  const Messages messages =
      check_messages(fmt::format("exchange '{}'", label), sends, receives, world_->rank(), world_->size());
  const auto on = static_cast<cudaStream_t>(stream);
  world_->enqueue(messages.posting, on);
  const Send& self = messages.from_self;
  if (self.data != messages.to_self.data) {
    check(cudaMemcpyAsync(messages.to_self.data, self.data, static_cast<size_t>(self.bytes), cudaMemcpyDeviceToDevice,
                          on),
          "cudaMemcpyAsync");
  }
}

void Streams::all_reduce(int64_t* data, int64_t count, std::string_view label, void* stream) {
  const std::string name = fmt::format("all_reduce '{}'", label);
  if (count < 0 || (count > 0 && data == nullptr)) {
    throw InvalidArgument(fmt::format("{}: {} elements at {}", name, count, fmt::ptr(data)));
  }
  world_->enqueue_sum(data, count, name, static_cast<cudaStream_t>(stream));
}

void Streams::watch(const std::function<bool()>& done, std::string_view label) {
  const std::string name = fmt::format("watch '{}'", label);
  const Clock::time_point deadline = deadline_after(world_->timeout());
  for (Backoff backoff; !done(); backoff.pause()) world_->check_streams(name, deadline);
  // What NCCL has ended early looks done.
  world_->check_streams(name, Clock::time_point::max());
}

}  // namespace muster::comm::nccl
