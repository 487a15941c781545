// A communicator that does something bad to its rank when a given operation of a given phase comes.
#pragma once

#include <atomic>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <mutex>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include "base/text.h"
#include "support/forwarding.h"

namespace muster::chaos {

// RANK:PHASE:NUMBER:ACTION:MICROSECONDS, for example 1:save:3:kill:500.
struct Fault {
  enum class Action {
    kKill,   // SIGKILL of the process, this long after the operation has begun
    kStop,   // the same with SIGSTOP; the driver reads the line that it prints, and sends SIGCONT
    kDelay,  // the rank sleeps this long
    kCrash,  // the rank throws
  };
  int32_t rank = 0;
  std::string phase;
  int64_t number = 0;  // of the operation in its phase, from 0
  Action action = Action::kKill;
  std::chrono::microseconds time{0};
};

inline int64_t number(std::string_view text) {
  const std::optional<int64_t> value = base::parse_integer(text);
  if (!value) throw std::runtime_error("not a number: " + std::string(text));
  return *value;
}

inline Fault parse_fault(std::string_view text) {
  const std::vector<std::string_view> parts = base::split(text, ':');
  if (parts.size() != 5) throw std::runtime_error("not a fault: " + std::string(text));
  constexpr std::string_view kActions[] = {"kill", "stop", "delay", "crash"};
  for (size_t a = 0; a < std::size(kActions); ++a) {
    if (parts[3] != kActions[a]) continue;
    return {static_cast<int32_t>(number(parts[0])), std::string(parts[1]), number(parts[2]),
            static_cast<Fault::Action>(a), std::chrono::microseconds(number(parts[4]))};
  }
  throw std::runtime_error("not an action: " + std::string(parts[3]));
}

struct Crash : std::runtime_error {
  Crash() : std::runtime_error("crashed on purpose") {}
};

// The faults of one rank, and how far its phases have come. Outlives the rank's communicators.
class Faults {
 public:
  Faults(std::vector<Fault> faults, int32_t rank) {
    for (Fault& fault : faults) {
      if (fault.rank == rank) faults_.push_back({std::move(fault), 0, false});
    }
  }

  void set_phase(std::string_view phase) { phase_ = phase; }

  void operation() {
    for (Pending& pending : faults_) {
      if (pending.done || pending.fault.phase != phase_ || pending.seen++ != pending.fault.number) continue;
      pending.done = true;
      strike(pending.fault);
    }
  }

 private:
  struct Pending {
    Fault fault;
    int64_t seen = 0;
    bool done = false;
  };

  static void strike(const Fault& fault) {
    std::printf("rank %d: struck\n", fault.rank);
    std::fflush(stdout);
    if (fault.action == Fault::Action::kCrash) throw Crash();
    if (fault.action == Fault::Action::kDelay) return std::this_thread::sleep_for(fault.time);
    const bool stop = fault.action == Fault::Action::kStop;
    const auto signal = [time = fault.time, rank = fault.rank, stop] {
      std::this_thread::sleep_for(time);
      if (stop) {
        std::printf("rank %d: stopping %d\n", rank, ::getpid());
        std::fflush(stdout);
      }
      ::kill(::getpid(), stop ? SIGSTOP : SIGKILL);
    };
    if (fault.time.count() == 0) {
      signal();
    } else {
      std::thread(signal).detach();
    }
  }

  std::string phase_ = "start";
  std::vector<Pending> faults_;
};

class FaultyCommunicator final : public test::ForwardingCommunicator {
 public:
  FaultyCommunicator(std::unique_ptr<Communicator> inner, Faults& faults)
      : ForwardingCommunicator(std::move(inner)), faults_(faults) {}

  std::unique_ptr<Request> exchange(std::span<const Send> sends, std::span<const Receive> receives,
                                    std::string_view label) override {
    faults_.operation();
    return ForwardingCommunicator::exchange(sends, receives, label);
  }
  std::unique_ptr<Request> all_gather(const void* mine, void* all, int64_t bytes, std::string_view label) override {
    faults_.operation();
    return ForwardingCommunicator::all_gather(mine, all, bytes, label);
  }
  std::unique_ptr<Request> all_reduce(std::span<float> data, ReduceOp op, std::string_view label) override {
    faults_.operation();
    return ForwardingCommunicator::all_reduce(data, op, label);
  }
  std::unique_ptr<Request> all_reduce(std::span<double> data, ReduceOp op, std::string_view label) override {
    faults_.operation();
    return ForwardingCommunicator::all_reduce(data, op, label);
  }
  std::unique_ptr<Request> all_reduce(std::span<int64_t> data, ReduceOp op, std::string_view label) override {
    faults_.operation();
    return ForwardingCommunicator::all_reduce(data, op, label);
  }
  std::unique_ptr<Request> broadcast(void* data, int64_t bytes, int32_t root, std::string_view label) override {
    faults_.operation();
    return ForwardingCommunicator::broadcast(data, bytes, root, label);
  }
  std::unique_ptr<Request> barrier(std::string_view label) override {
    faults_.operation();
    return ForwardingCommunicator::barrier(label);
  }
  StreamCommunicator* on_stream() override { return inner().on_stream(); }

 private:
  Faults& faults_;
};

}  // namespace muster::chaos
