#include "comm/mpi/mpi_communicator.h"

#include <utility>

#include <fmt/format.h>

#include "comm/collectives.h"
#include "comm/mpi/mpi_library.h"
#include "comm/mpi/mpi_world.h"
#include "comm/world_request.h"
#include "muster/error.h"

namespace muster::comm::mpi {

namespace {

using MpiRequest = WorldRequest<World, std::unique_ptr<Operation>>;

class MpiCommunicator final : public Collectives {
 public:
  explicit MpiCommunicator(std::shared_ptr<World> world) : world_(std::move(world)) {}

  int32_t rank() const override { return world_->rank(); }
  int32_t size() const override { return world_->size(); }
  std::chrono::milliseconds timeout() const override { return world_->timeout(); }
  void abort(std::string_view reason) override { world_->abort(reason); }

 private:
  std::unique_ptr<Request> post(Posting posting) override {
    return std::make_unique<MpiRequest>(world_, world_->post(std::move(posting)));
  }

  std::shared_ptr<World> world_;  // requests keep it: this rank leaves when the last of them is gone
};

}  // namespace

std::unique_ptr<Communicator> make_communicator(const CommOptions& options, const Limits& limits) {
  check_options(options);
  if (limits.piece_bytes < 1 || limits.piece_bytes > INT32_MAX) {
    throw InvalidArgument(fmt::format("make_mpi_communicator: pieces of {} bytes", limits.piece_bytes));
  }
  if (limits.sequence_bits != 0 && (limits.sequence_bits < 8 || limits.sequence_bits > 14)) {
    throw InvalidArgument(fmt::format("make_mpi_communicator: {} bits for numbers", limits.sequence_bits));
  }
  return std::make_unique<MpiCommunicator>(std::make_shared<World>(options, limits));
}

}  // namespace muster::comm::mpi

namespace muster {

bool mpi_available() { return true; }

std::unique_ptr<Communicator> make_mpi_communicator(const CommOptions& options) {
  return comm::mpi::make_communicator(options, {});
}

}  // namespace muster
