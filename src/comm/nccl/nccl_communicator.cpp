#include "comm/nccl/nccl_communicator.h"

#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "comm/nccl/nccl_library.h"
#include "comm/nccl/nccl_streams.h"
#include "comm/nccl/nccl_world.h"
#include "muster/error.h"

namespace muster::comm::nccl {

namespace {

class NcclCommunicator final : public WorldCommunicator<World> {
 public:
  explicit NcclCommunicator(std::shared_ptr<World> world) : WorldCommunicator(std::move(world)), streams_(world_) {}

  StreamCommunicator* on_stream() override { return &streams_; }

 private:
  void copy(void* to, const void* from, int64_t bytes) override { world_->copy(to, from, bytes); }

  Streams streams_;
};

}  // namespace

NcclId make_id() {
  ncclUniqueId unique = {};
  if (const ncclResult_t result = library().get_unique_id(&unique); result != ncclSuccess) {
    throw CommError(fmt::format("make_nccl_id: {}", library().get_error_string(result)));
  }
  NcclId id;
  std::memcpy(id.bytes.data(), unique.internal, id.bytes.size());
  return id;
}

std::unique_ptr<Communicator> make_communicator(const NcclId& id, int32_t rank, int32_t size,
                                                const CommOptions& options, const Limits& limits) {
  check_options(options);
  if (size < 1 || rank < 0 || rank >= size) {
    throw InvalidArgument(fmt::format("make_nccl_communicator: rank {} of {}", rank, size));
  }
  library();
  return std::make_unique<NcclCommunicator>(std::make_shared<World>(id, rank, size, options, limits));
}

std::unique_ptr<Communicator> make_communicator(Communicator& others, const CommOptions& options,
                                                const Limits& limits) {
  check_options(options);
  // A rank without NCCL says so; otherwise the others would wait for it.
  struct Offer {
    int32_t able = 0;
    NcclId id;
  };
  Offer mine;
  std::string missing = find_library().missing;
  if (missing.empty() && others.rank() == 0) {
    try {
      mine.id = make_id();
    } catch (const CommError& error) {
      missing = error.what();
    }
  }
  mine.able = missing.empty();
  std::vector<Offer> all(static_cast<size_t>(others.size()));
  others.all_gather(&mine, all.data(), sizeof mine, "make_nccl_communicator")->wait();
  if (!missing.empty()) throw CommError("make_nccl_communicator: " + missing);
  for (int32_t rank = 0; rank < others.size(); ++rank) {
    if (!all[rank].able) throw CommError(fmt::format("make_nccl_communicator: rank {} has no NCCL", rank));
  }
  return make_communicator(all[0].id, others.rank(), others.size(), options, limits);
}

}  // namespace muster::comm::nccl

namespace muster {

bool nccl_available() { return comm::nccl::find_library().missing.empty(); }

NcclId make_nccl_id() { return comm::nccl::make_id(); }

std::unique_ptr<Communicator> make_nccl_communicator(const NcclId& id, int32_t rank, int32_t size,
                                                     const CommOptions& options) {
  return comm::nccl::make_communicator(id, rank, size, options, {});
}

std::unique_ptr<Communicator> make_nccl_communicator(Communicator& others, const CommOptions& options) {
  return comm::nccl::make_communicator(others, options, {});
}

}  // namespace muster
