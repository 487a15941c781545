// Trains while things go wrong; chaos.py starts it, sends signals, and judges.
//
//   chaos_rank reference steps=N          prints "step S HASH" for every step of undisturbed training on one rank
//   chaos_rank check dir=D ranks=R cut=C  loads the checkpoint on R ranks and prints the same line of it
//   chaos_rank train comm=local|mpi|nccl ranks=R cut=C dir=D steps=N every=K overlap=0|1 timeout=MS recover=0|1
//   FAULT...
//     goes on from the checkpoint in D, if there is one, until step N; saves every K steps
//
// A rank that gets a CommError makes a new communicator with the others, reconnects, loads the checkpoint and goes on;
// with recover=0, or if the others do not come, it ends. Each prints "rank R: done HASH", "rank R: lost TEXT" or
// "rank R: wrong TEXT": statuses say nothing under mpirun --enable-recovery.
#include <condition_variable>
#include <cstdlib>
#include <map>

#include "chaos/faulty_communicator.h"
#include "chaos/trainee.h"
#include "muster/error.h"

namespace muster::chaos {
namespace {

struct Arguments {
  std::map<std::string, std::string> values;
  std::vector<Fault> faults;

  const std::string& text(const std::string& key) const {
    const auto found = values.find(key);
    if (found == values.end()) throw std::runtime_error(key + "= is missing");
    return found->second;
  }
  int64_t whole(const std::string& key) const { return number(text(key)); }
};

void say(int32_t rank, const std::string& text) {
  std::printf("rank %d: %s\n", rank, text.c_str());
  std::fflush(stdout);
}

std::string hex(uint64_t hash) { return fmt::format("{:016x}", hash); }

OptimizerOptions make_options(const Arguments& arguments) {
  OptimizerOptions options;
  options.seed = 7;
  options.groups.resize(2);
  options.groups[1].lr = 0.01;
  options.groups[1].weight_decay = 0.1;
  options.groups[1].every = 2;
  if (arguments.values.contains("overlap") && arguments.whole("overlap") != 0) {
    options.overlap = true;
    options.plan.order = {7, 6, 5, 4, 3, 2, 1, 0};
  }
  options.plan.waves = 3;
  if (arguments.values.contains("comm") && arguments.text("comm") == "nccl") {
    options.plan.cost = CostTable::h200();
    options.device.kind = Device::Kind::kCuda;
  }
  return options;
}

// Where ranks get a communicator, again after each failure.
class Source {
 public:
  virtual ~Source() = default;
  // All ranks together. Throws CommError if they do not come.
  virtual std::unique_ptr<Communicator> make(int32_t rank) = 0;
};

class Threads final : public Source {
 public:
  Threads(int32_t ranks, std::chrono::milliseconds timeout) : ranks_(ranks), timeout_(timeout) {}

  std::unique_ptr<Communicator> make(int32_t rank) override {
    std::unique_lock lock(mutex_);
    const int64_t round = round_;
    if (++waiting_ == ranks_) {
      made_ = make_local_communicators(ranks_, {timeout_});
      waiting_ = 0;
      ++round_;
      changed_.notify_all();
    } else if (!changed_.wait_for(lock, 2 * timeout_, [&] { return round_ != round; })) {
      --waiting_;
      throw CommError("the other threads did not make a new communicator");
    }
    return std::move(made_[static_cast<size_t>(rank)]);
  }

 private:
  const int32_t ranks_;
  const std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int32_t waiting_ = 0;
  int64_t round_ = 0;
  std::vector<std::unique_ptr<Communicator>> made_;
};

class Processes final : public Source {
 public:
  Processes(std::chrono::milliseconds timeout, bool nccl) : timeout_(timeout), nccl_(nccl) {}

  std::unique_ptr<Communicator> make(int32_t) override {
    std::unique_ptr<Communicator> mpi = make_mpi_communicator({timeout_});
    if (!nccl_) return mpi;
    host_ = std::move(mpi);
    // Several ranks may use one GPU if each claims a machine of its own.
    setenv("NCCL_HOSTID", std::to_string(host_->rank()).c_str(), 1);
    setenv("NCCL_SOCKET_IFNAME", "lo", 0);
    return make_nccl_communicator(*host_, {timeout_});
  }

 private:
  const std::chrono::milliseconds timeout_;
  const bool nccl_;
  std::unique_ptr<Communicator> host_;
};

// One rank. It keeps its optimizer when it gets another communicator, unless there is no checkpoint yet.
class Rank {
 public:
  Rank(const Arguments& arguments, Source& source, int32_t rank)
      : arguments_(arguments), source_(source), rank_(rank), faults_(arguments.faults, rank) {}

  uint64_t run() {
    constexpr int kRecoveries = 4;
    for (int attempt = 0;; ++attempt) {
      faults_.set_phase(attempt == 0 ? "start" : "reconnect");
      if (communicator_ != nullptr) {
        communicator_->abort("trains with another communicator");
        former_.push_back(std::move(communicator_));
      }
      communicator_ = std::make_unique<FaultyCommunicator>(source_.make(rank_), faults_);
      try {
        start();
        train();
        return finish();
      } catch (const CommError& error) {
        if (attempt == kRecoveries || arguments_.whole("recover") == 0) throw;
        say(rank_, std::string("recovers from: ") + error.what());
      } catch (const Crash&) {
        if (attempt == kRecoveries) throw;
        communicator_->abort("crashed on purpose");
      }
    }
  }

 private:
  void start() {
    int64_t exists = rank_ == 0 && has_checkpoint(arguments_.text("dir")) ? 1 : 0;
    communicator_->broadcast(&exists, sizeof exists, 0, "is there a checkpoint")->wait();
    // Some ranks may have failed before they had an optimizer.
    int64_t kept[] = {trainee_ != nullptr ? 1 : 0};
    communicator_->all_reduce(std::span<int64_t>(kept), ReduceOp::kMin, "keep the optimizer")->wait();
    if (exists != 0 && kept[0] != 0) {
      trainee_->optimizer().reconnect(*communicator_);
    } else {
      trainee_.reset();
      trainee_ = std::make_unique<Trainee>(make_problem(communicator_->size(), arguments_.whole("cut")),
                                           make_options(arguments_), *communicator_);
    }
    if (exists == 0) return;
    faults_.set_phase("load");
    trainee_->optimizer().load(arguments_.text("dir"));
  }

  void train() {
    const std::string& directory = arguments_.text("dir");
    const bool overlap = arguments_.whole("overlap") != 0;
    while (trainee_->optimizer().steps() < arguments_.whole("steps")) {
      faults_.set_phase("step");
      trainee_->step(overlap);
      const int64_t steps = trainee_->optimizer().steps();
      if (steps % arguments_.whole("every") != 0) continue;
      faults_.set_phase("save");
      trainee_->optimizer().save(directory);
      if (rank_ == 0) say(rank_, "saved " + std::to_string(steps));
    }
  }

  uint64_t finish() {
    faults_.set_phase("end");
    const uint64_t hash = trainee_->hash();
    communicator_->barrier("end")->wait();
    return hash;
  }

  const Arguments& arguments_;
  Source& source_;
  const int32_t rank_;
  Faults faults_;
  std::vector<std::unique_ptr<Communicator>> former_;  // the optimizer refers to the last of them until it reconnects
  std::unique_ptr<Communicator> communicator_;
  std::unique_ptr<Trainee> trainee_;
};

bool run_rank(const Arguments& arguments, Source& source, int32_t rank) {
  try {
    Rank mine(arguments, source, rank);
    say(rank, fmt::format("runs in {}", ::getpid()));
    say(rank, "done " + hex(mine.run()));
    return true;
  } catch (const CommError& error) {
    say(rank, std::string("lost ") + error.what());
    return true;
  } catch (const Crash& crash) {
    say(rank, std::string("lost ") + crash.what());
    return true;
  } catch (const std::exception& error) {
    say(rank, std::string("wrong ") + error.what());
    return false;
  }
}

int train(const Arguments& arguments) {
  const std::chrono::milliseconds timeout(arguments.whole("timeout"));
  const std::string& comm = arguments.text("comm");
  if (comm != "local") {
    const char* const rank = std::getenv("OMPI_COMM_WORLD_RANK");
    if (rank == nullptr) throw std::runtime_error("comm=" + comm + " needs mpirun");
    Processes source(timeout, comm == "nccl");
    const bool fine = run_rank(arguments, source, static_cast<int32_t>(number(rank)));
    std::_Exit(fine ? 0 : 1);  // MPI_Finalize would wait for the dead
  }
  const auto ranks = static_cast<int32_t>(arguments.whole("ranks"));
  Threads source(ranks, timeout);
  std::atomic<bool> fine{true};
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] { fine = run_rank(arguments, source, rank) && fine; });
  }
  for (std::thread& thread : threads) thread.join();
  return fine ? 0 : 1;
}

int reference(const Arguments& arguments) {
  const auto alone = std::move(make_local_communicators(1).front());
  Trainee trainee(make_problem(1, 0), make_options(arguments), *alone);
  const int64_t steps = arguments.whole("steps");
  for (int64_t step = 0; step <= steps; ++step) {
    if (step > 0) trainee.step(false);
    std::printf("step %lld %s\n", static_cast<long long>(step), hex(trainee.hash()).c_str());
  }
  return 0;
}

int check(const Arguments& arguments) {
  const auto ranks = static_cast<int32_t>(arguments.whole("ranks"));
  const auto communicators = make_local_communicators(ranks, {std::chrono::seconds(60)});
  const auto body = [&](int32_t rank) {
    Trainee trainee(make_problem(ranks, arguments.whole("cut")), make_options(arguments),
                    *communicators[static_cast<size_t>(rank)]);
    trainee.optimizer().load(arguments.text("dir"));
    const uint64_t hash = trainee.hash();
    if (rank != 0) return;
    std::printf("step %lld %s\n", static_cast<long long>(trainee.optimizer().steps()), hex(hash).c_str());
  };
  std::atomic<bool> fine{true};
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (const std::exception& error) {
        say(rank, std::string("wrong ") + error.what());
        fine = false;
        communicators[static_cast<size_t>(rank)]->abort(error.what());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return fine ? 0 : 1;
}

int run(int argc, char** argv) {
  if (argc < 2) throw std::runtime_error("reference, check or train?");
  Arguments arguments;
  for (int i = 2; i < argc; ++i) {
    const std::string text = argv[i];
    const size_t equals = text.find('=');
    if (equals == std::string::npos) {
      arguments.faults.push_back(parse_fault(text));
    } else {
      arguments.values[text.substr(0, equals)] = text.substr(equals + 1);
    }
  }
  const std::string mode = argv[1];
  if (mode == "reference") return reference(arguments);
  if (mode == "check") return check(arguments);
  if (mode == "train") return train(arguments);
  throw std::runtime_error("not a mode: " + mode);
}

}  // namespace
}  // namespace muster::chaos

int main(int argc, char** argv) {
  try {
    return muster::chaos::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "chaos_rank: %s\n", error.what());
    return 1;
  }
}
