// Operations in the order of a stream: nothing but NCCL calls and copies there, so that graphs can hold them.
#pragma once

#include "comm/nccl/nccl_world.h"

namespace muster::comm::nccl {

class Streams final : public StreamCommunicator {
 public:
  explicit Streams(std::shared_ptr<World> world);

  void exchange(std::span<const Send> sends, std::span<const Receive> receives, std::string_view label,
                void* stream) override;
  void all_reduce(int64_t* data, int64_t count, std::string_view label, void* stream) override;
  void watch(const std::function<bool()>& done, std::string_view label) override;

 private:
  std::shared_ptr<World> world_;
};

}  // namespace muster::comm::nccl
