#include <thread>

#include <fmt/format.h>

#include "muster/error.h"
#include "support/comm_contract.h"

namespace muster::test {

namespace {

int32_t culprit(const Communicator& comm) { return comm.size() - 1; }
bool is_culprit(const Communicator& comm) { return comm.rank() == culprit(comm); }

// Everybody sends to the next, and then meets: whoever the ring does not concern learns of it there. Message sizes of
// the culprit are as given.
void ring(Communicator& comm, int64_t culprits_bytes, int64_t bytes) {
  std::vector<uint8_t> out(static_cast<size_t>(std::max(culprits_bytes, bytes)));
  std::vector<uint8_t> in(static_cast<size_t>(bytes));
  const Send send{(comm.rank() + 1) % comm.size(), out.data(), is_culprit(comm) ? culprits_bytes : bytes};
  const Receive receive{(comm.rank() + comm.size() - 1) % comm.size(), in.data(), bytes};
  comm.exchange({&send, 1}, {&receive, 1}, "ring")->wait();
  comm.barrier("after the ring")->wait();
}

using Owner = std::unique_ptr<Communicator>;

// What was sent before the others gave up may let the culprit through once, but not twice.
void never_arrives(Owner& comm) {
  if (is_culprit(*comm)) std::this_thread::sleep_for(comm->timeout() * 2);
  for (int i = 0; i < 2; ++i) comm->barrier("meet")->wait();
}

void leaves(Owner& comm) {
  if (is_culprit(*comm)) {
    comm.reset();
  } else {
    comm->barrier("meet")->wait();
  }
}

void aborts(Owner& comm) {
  if (is_culprit(*comm)) comm->abort("out of luck");
  comm->barrier("meet")->wait();
}

// One thread of the culprit talks while another gives up.
void aborts_from_another_thread(Owner& comm) {
  std::jthread other;
  if (is_culprit(*comm)) {
    other = std::jthread([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      comm->abort("out of luck");
    });
  }
  for (;;) comm->barrier("meet")->wait();
}

void calls_something_else(Owner& comm) {
  const char* label = is_culprit(*comm) ? "elsewhere" : "meet";
  comm->barrier(label)->wait();
}

void polls_forever(Owner& comm) {
  if (is_culprit(*comm)) std::this_thread::sleep_for(comm->timeout() * 2);
  std::vector<float> data(10);
  for (int i = 0; i < 2; ++i) {
    const auto request = comm->all_reduce(std::span(data), ReduceOp::kSum, "meet");
    while (!request->test()) std::this_thread::yield();
  }
}

}  // namespace

const std::vector<FailureCase>& failure_cases() {
  static const std::vector<FailureCase> cases = {
      {"a_rank_never_arrives", never_arrives, {"barrier 'meet'", "rank {culprit} did not arrive"}},
      {"a_rank_leaves", leaves, {"barrier 'meet'", "rank {culprit} left"}},
      {"a_rank_aborts", aborts, {"barrier 'meet'", "rank {culprit} aborted: out of luck"}},
      {"another_thread_aborts", aborts_from_another_thread, {"barrier 'meet'", "rank {culprit} aborted: out of luck"}},
      {"a_rank_calls_something_else", calls_something_else, {"barrier", "ranks disagree", "rank {culprit} calls"}},
      {"a_rank_sends_too_much", [](Owner& comm) { ring(*comm, 600, 500); }, {"exchange 'ring'", "rank {culprit}"}},
      {"a_rank_sends_much_too_much",
       [](Owner& comm) { ring(*comm, 300000, 200000); },
       {"exchange 'ring'", "rank {culprit}"}},
      {"a_rank_sends_too_little",
       [](Owner& comm) { ring(*comm, 400, 500); },
       {"exchange 'ring'", "rank {culprit} sends 400 bytes to rank 0, which expects 500"}},
      // Where this shows only by the timeout, who is blamed depends on who waits first.
      {"a_rank_sends_nothing", [](Owner& comm) { ring(*comm, 0, 500); }, {"ring'", "rank"}},
      {"a_poll_ends_too", polls_forever, {"all_reduce 'meet'", "rank {culprit} did not arrive"}},
  };
  return cases;
}

std::string run_failure_case(const FailureCase& failure, std::unique_ptr<Communicator> comm) {
  const std::string who = std::to_string(culprit(*comm));
  const bool leaver = is_culprit(*comm) && failure.name == "a_rank_leaves";
  std::string said;
  ErrorCode code = ErrorCode::kOther;
  try {
    failure.run(comm);
  } catch (const CommError& error) {
    said = error.what();
    code = error.code();
  }
  if (leaver) return said;
  if (said.empty()) return "no CommError";
  for (std::string word : failure.words) {
    const size_t at = word.find("{culprit}");
    if (at != std::string::npos) word.replace(at, 9, who);
    if (said.find(word) == std::string::npos) return fmt::format("'{}' lacks '{}'", said, word);
  }
  // Callers could tell a timeout only by its text, also where another rank found it and told this one.
  const bool late = said.find(" within ") != std::string::npos;
  if (late != (code == ErrorCode::kRankMissing)) {
    return fmt::format("'{}' has code {}", said, static_cast<int>(code));
  }
  // Dead for good, and every call says so with the same cause.
  for (int i = 0; i < 2; ++i) {
    try {
      comm->exchange({}, {}, "afterwards")->wait();
      return "a dead communicator goes on";
    } catch (const CommError& error) {
      const std::string again = error.what();
      if (again.find("exchange 'afterwards'") == std::string::npos) return fmt::format("'{}' does not name it", again);
    }
  }
  return "";
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const CommError& error) {
    return error.what();
  }
  return "no CommError";
}

}  // namespace muster::test
