#include "comm/mpi/mpi_communicator.h"

#include <utility>

#include <fmt/format.h>

#include "comm/backoff.h"
#include "comm/collectives.h"
#include "comm/mpi/mpi_library.h"
#include "comm/mpi/mpi_world.h"
#include "muster/error.h"

namespace muster::comm::mpi {

namespace {

class MpiRequest final : public Request {
 public:
  MpiRequest(std::shared_ptr<World> world, std::unique_ptr<Operation> operation)
      : world_(std::move(world)), operation_(std::move(operation)) {}
  ~MpiRequest() override {
    try {
      wait();
    } catch (const CommError&) {
    }
  }

  bool test() override {
    if (!test_deadline_) test_deadline_ = deadline_after(world_->timeout());
    return world_->advance(*operation_, *test_deadline_);
  }
  void wait() override {
    const Clock::time_point deadline = deadline_after(world_->timeout());
    for (Backoff backoff; !world_->advance(*operation_, deadline);) backoff.pause();
  }

 private:
  std::shared_ptr<World> world_;
  std::unique_ptr<Operation> operation_;
  std::optional<Clock::time_point> test_deadline_;
};

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
