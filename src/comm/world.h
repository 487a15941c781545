// What the backends share in which a World holds one rank's state, and operations advance whenever a rank asks.
//
// A World offers post(Posting), which returns a pointer to an operation, and advance(operation, deadline), which is
// true once the operation is done and fails past the deadline. It may offer wait(operation, deadline).
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "comm/backoff.h"
#include "comm/collectives.h"
#include "comm/operation.h"
#include "muster/error.h"

namespace muster::comm {

class WorldBase {
 public:
  WorldBase(int32_t rank, int32_t size, std::chrono::milliseconds timeout)
      : timeout_(timeout), rank_(rank), size_(size) {}
  WorldBase(const WorldBase&) = delete;
  WorldBase& operator=(const WorldBase&) = delete;

  int32_t rank() const { return rank_; }
  int32_t size() const { return size_; }
  std::chrono::milliseconds timeout() const { return timeout_; }

 protected:
  ~WorldBase() = default;
  // Throws the failure as the operation `name` reports it.
  [[noreturn]] void raise(const std::string& name) const { throw CommError(seen_by(name, *failure_)); }

  std::mutex mutex_;  // abort() comes from any thread
  const std::chrono::milliseconds timeout_;
  int32_t rank_;
  int32_t size_;
  std::optional<Failure> failure_;  // the first one stays
};

template <typename World, typename OperationPointer>
class WorldRequest final : public Request {
 public:
  WorldRequest(std::shared_ptr<World> world, OperationPointer operation)
      : world_(std::move(world)), operation_(std::move(operation)) {}
  ~WorldRequest() override {
    try {
      wait();
    } catch (const Error&) {
    }
  }

  bool test() override {
    if (!test_deadline_) test_deadline_ = deadline_after(world_->timeout());
    return world_->advance(*operation_, *test_deadline_);
  }
  void wait() override {
    const Clock::time_point deadline = deadline_after(world_->timeout());
    if constexpr (requires { world_->wait(*operation_, deadline); }) {
      world_->wait(*operation_, deadline);
    } else {
      for (Backoff backoff; !world_->advance(*operation_, deadline);) backoff.pause();
    }
  }

 private:
  std::shared_ptr<World> world_;
  OperationPointer operation_;
  std::optional<Clock::time_point> test_deadline_;
};

template <typename World>
class WorldCommunicator : public Collectives {
 public:
  explicit WorldCommunicator(std::shared_ptr<World> world) : world_(std::move(world)) {}

  int32_t rank() const override { return world_->rank(); }
  int32_t size() const override { return world_->size(); }
  std::chrono::milliseconds timeout() const override { return world_->timeout(); }
  void abort(std::string_view reason) override { world_->abort(reason); }

 protected:
  const std::shared_ptr<World> world_;  // requests keep it too: the rank leaves when the last of them is gone

 private:
  std::unique_ptr<Request> post(Posting posting) override {
    auto operation = world_->post(std::move(posting));
    return std::make_unique<WorldRequest<World, decltype(operation)>>(world_, std::move(operation));
  }
};

}  // namespace muster::comm
