#include "comm/interruptible.h"

#include <utility>

#include "comm/backoff.h"
#include "comm/operation.h"

namespace muster::comm {

namespace {

constexpr std::chrono::milliseconds kLookInterval{100};

// A communicator and its check. Requests keep it too.
struct Checked {
  std::unique_ptr<Communicator> inner;
  std::function<void()> check;
};

// One wait.
class Wait {
 public:
  explicit Wait(const Checked& checked) : checked_(checked) {}

  // To call between polls.
  void look() {
    const Clock::time_point now = Clock::now();
    if (now < next_) return;
    next_ = now + kLookInterval;
    try {
      checked_.check();
    } catch (...) {
      // What is under way must not write to memory that the caller frees now, and peers should not wait.
      checked_.inner->abort("interrupted");
      throw;
    }
  }

 private:
  const Checked& checked_;
  Clock::time_point next_ = Clock::now() + kLookInterval;
};

class InterruptibleRequest final : public Request {
 public:
  InterruptibleRequest(std::shared_ptr<Checked> checked, std::unique_ptr<Request> inner)
      : checked_(std::move(checked)), inner_(std::move(inner)) {}

  bool test() override { return inner_->test(); }
  void wait() override {
    Wait interrupt(*checked_);
    for (Backoff backoff; !inner_->test(); backoff.pause()) interrupt.look();
  }

 private:
  std::shared_ptr<Checked> checked_;
  std::unique_ptr<Request> inner_;  // declared last: ends before its communicator
};

class InterruptibleStream final : public StreamCommunicator {
 public:
  explicit InterruptibleStream(std::shared_ptr<Checked> checked) : checked_(std::move(checked)) {}

  void exchange(std::span<const Send> sends, std::span<const Receive> receives, std::string_view label,
                void* stream) override {
    inner().exchange(sends, receives, label, stream);
  }
  void all_reduce(int64_t* data, int64_t count, std::string_view label, void* stream) override {
    inner().all_reduce(data, count, label, stream);
  }
  void watch(const std::function<bool()>& done, std::string_view label) override {
    Wait interrupt(*checked_);
    const auto look_and_ask = [&] {
      interrupt.look();
      return done();
    };
    inner().watch(look_and_ask, label);
  }

 private:
  StreamCommunicator& inner() { return *checked_->inner->on_stream(); }

  std::shared_ptr<Checked> checked_;
};

class InterruptibleCommunicator final : public Communicator {
 public:
  explicit InterruptibleCommunicator(std::shared_ptr<Checked> checked)
      : checked_(std::move(checked)), stream_(checked_) {}

  int32_t rank() const override { return checked_->inner->rank(); }
  int32_t size() const override { return checked_->inner->size(); }
  std::chrono::milliseconds timeout() const override { return checked_->inner->timeout(); }

  std::unique_ptr<Request> exchange(std::span<const Send> sends, std::span<const Receive> receives,
                                    std::string_view label) override {
    return wrap(checked_->inner->exchange(sends, receives, label));
  }
  std::unique_ptr<Request> all_gather(const void* mine, void* all, int64_t bytes, std::string_view label) override {
    return wrap(checked_->inner->all_gather(mine, all, bytes, label));
  }
  std::unique_ptr<Request> reduce_scatter(const float* all, float* mine, std::span<const int64_t> parts, ReduceOp op,
                                          std::string_view label) override {
    return wrap(checked_->inner->reduce_scatter(all, mine, parts, op, label));
  }
  std::unique_ptr<Request> all_reduce(std::span<float> data, ReduceOp op, std::string_view label) override {
    return wrap(checked_->inner->all_reduce(data, op, label));
  }
  std::unique_ptr<Request> all_reduce(std::span<double> data, ReduceOp op, std::string_view label) override {
    return wrap(checked_->inner->all_reduce(data, op, label));
  }
  std::unique_ptr<Request> all_reduce(std::span<int64_t> data, ReduceOp op, std::string_view label) override {
    return wrap(checked_->inner->all_reduce(data, op, label));
  }
  std::unique_ptr<Request> broadcast(void* data, int64_t bytes, int32_t root, std::string_view label) override {
    return wrap(checked_->inner->broadcast(data, bytes, root, label));
  }
  std::unique_ptr<Request> barrier(std::string_view label) override { return wrap(checked_->inner->barrier(label)); }

  void abort(std::string_view reason) override { checked_->inner->abort(reason); }
  StreamCommunicator* on_stream() override { return checked_->inner->on_stream() == nullptr ? nullptr : &stream_; }

 private:
  std::unique_ptr<Request> wrap(std::unique_ptr<Request> request) {
    return std::make_unique<InterruptibleRequest>(checked_, std::move(request));
  }

  std::shared_ptr<Checked> checked_;
  InterruptibleStream stream_;
};

}  // namespace

std::unique_ptr<Communicator> make_interruptible(std::unique_ptr<Communicator> inner, std::function<void()> check) {
  return std::make_unique<InterruptibleCommunicator>(
      std::make_shared<Checked>(Checked{std::move(inner), std::move(check)}));
}

}  // namespace muster::comm
