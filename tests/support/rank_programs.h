// What programs share whose processes are ranks: how they register cases of the contract, and what they print. Scripts
// count the lines "rank R: passed", because mpirun --enable-recovery hides exit statuses.
#pragma once

#include <csignal>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "muster/communicator.h"
#include "muster/error.h"
#include "support/comm_contract.h"

namespace muster::test {

using RunContract = std::function<void(const ContractCase&)>;

// All cases of the contract as tests of one suite; `run` gives each its communicator.
inline void add_contract_cases(const char* suite, const RunContract& run) {
  class Case : public testing::Test {
   public:
    Case(const ContractCase& contract, RunContract run) : contract_(contract), run_(std::move(run)) {}

   private:
    void TestBody() override { run_(contract_); }

    const ContractCase& contract_;
    RunContract run_;
  };
  for (const ContractCase& contract : contract_cases()) {
    testing::RegisterTest(suite, contract.name.c_str(), nullptr, nullptr, __FILE__, __LINE__,
                          [&contract, run] { return new Case(contract, run); });
  }
}

// Rank 0 prints every test; the others print failures only.
inline void print_as(int32_t rank) {
  class FailurePrinter final : public testing::EmptyTestEventListener {
   public:
    explicit FailurePrinter(int32_t rank) : rank_(rank) {}

   private:
    void OnTestPartResult(const testing::TestPartResult& result) override {
      if (result.failed()) std::fprintf(stderr, "rank %d: %s\n", rank_, result.message());
    }

    int32_t rank_;
  };
  if (rank == 0) return;
  testing::TestEventListeners& listeners = testing::UnitTest::GetInstance()->listeners();
  delete listeners.Release(listeners.default_result_printer());
  listeners.Append(new FailurePrinter(rank));
}

// One line, flushed: this process may be killed next.
inline void print_line(int32_t rank, const std::string& text) {
  std::printf("rank %d: %s\n", rank, text.c_str());
  std::fflush(stdout);
}

// `wrong` is empty if all is well. Returns whether it is.
inline bool report(int32_t rank, const std::string& name, const std::string& wrong) {
  print_line(rank, name + ": " + (wrong.empty() ? "fine" : wrong));
  return wrong.empty();
}

// Returns the exit status.
inline int conclude(int32_t rank, const std::string& wrong) {
  print_line(rank, wrong.empty() ? "passed" : wrong);
  return wrong.empty() ? 0 : 1;
}

// The CommError that `work` throws; empty if it throws none.
template <typename Work>
std::string comm_error(Work work) {
  try {
    work();
  } catch (const CommError& error) {
    return error.what();
  }
  return {};
}

// The last rank dies in the middle of an exchange of messages that do not fit MPI's own buffers.
inline bool a_rank_is_killed(Communicator& comm) {
  const int32_t culprit = comm.size() - 1;
  constexpr int64_t kBytes = 1 << 20;
  std::vector<uint8_t> out(kBytes);
  std::vector<uint8_t> in(static_cast<size_t>(comm.size() * kBytes));
  const std::string said = comm_error([&] {
    for (int round = 0; round < 50; ++round) {
      const auto request = comm.all_gather(out.data(), in.data(), kBytes, "round");
      if (round == 20 && comm.rank() == culprit) std::raise(SIGKILL);
      request->wait();
    }
  });
  print_line(comm.rank(), said);
  const bool named = said.find("all_gather 'round'") != std::string::npos &&
                     said.find("rank " + std::to_string(culprit)) != std::string::npos;
  return report(comm.rank(), "a_rank_is_killed", named ? "" : "does not name the rank and the operation");
}

}  // namespace muster::test
