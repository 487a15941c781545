// An operation of a backend whose ranks advance it whenever they are asked to: World::advance(operation, deadline).
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "comm/backoff.h"
#include "comm/operation.h"
#include "muster/error.h"

namespace muster::comm {

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
    for (Backoff backoff; !world_->advance(*operation_, deadline);) backoff.pause();
  }

 private:
  std::shared_ptr<World> world_;
  OperationPointer operation_;
  std::optional<Clock::time_point> test_deadline_;
};

}  // namespace muster::comm
