#include "engine/step/fail_together.h"

#include <new>
#include <stdexcept>

#include <gtest/gtest.h>

#include "muster/error.h"
#include "support/run_ranks.h"

namespace muster::engine {
namespace {

TEST(FailTogether, ThrowsTheFirstRanksFailureOnEveryRank) {
  test::run_ranks(3, [](Communicator& comm) {
    try {
      fail_together(comm, "work", [&] {
        if (comm.rank() == 1) throw CommError({"a text", ErrorCode::kReplicaWeightsDiffer, "blocks.0.w"});
        if (comm.rank() == 2) throw std::runtime_error("another text");
      });
      ADD_FAILURE() << "nothing was thrown";
    } catch (const InvalidArgument& error) {
      EXPECT_STREQ(error.what(), "rank 1: a text");
      EXPECT_EQ(error.code(), ErrorCode::kReplicaWeightsDiffer);
      EXPECT_EQ(error.parameter(), "blocks.0.w");
    }
    EXPECT_EQ(failure_of_any(comm, "more work",
                             [&] {
                               if (comm.rank() == 2) throw std::runtime_error("another text");
                             }),
              "rank 2: another text");
    EXPECT_EQ(failure_of_any(comm, "the last work", [] {}), "");
  });
}

// A full disk was an InvalidArgument, and a failed allocation too, whose text was the library's.
TEST(FailTogether, ThrowsResourceErrorIfTheMachineIsAtFault) {
  test::run_ranks(3, [](Communicator& comm) {
    const auto error_of = [&](const auto& work) -> std::string {
      try {
        fail_together(comm, "work", work);
      } catch (const ResourceError& error) {
        EXPECT_EQ(error.code(), ErrorCode::kResource);
        return error.what();
      }
      return "no ResourceError";
    };
    EXPECT_EQ(error_of([&] {
                if (comm.rank() == 2) throw ResourceError("cannot write 'a': No space left on device");
              }),
              "rank 2: cannot write 'a': No space left on device");
    EXPECT_EQ(error_of([&] {
                if (comm.rank() == 1) throw std::bad_alloc();
              }),
              "rank 1: out of memory");
  });
}

// A device reports several steps at once.
TEST(Failure, KeepsTheFirstCodeWhenTwoAreJoined) {
  const Failure plain("step 3: rank 1 refused it");
  const Failure coded("step 4: they differ", ErrorCode::kReplicaGradientsDiffer, "w");
  for (const Failure& both : {plain.followed_by(coded), coded.followed_by(plain)}) {
    EXPECT_EQ(both.code, ErrorCode::kReplicaGradientsDiffer);
    EXPECT_EQ(both.parameter, "w");
  }
  EXPECT_EQ(plain.followed_by(coded).text, "step 3: rank 1 refused it; step 4: they differ");
  EXPECT_EQ(coded.within("step 4 broke off").text, "step 4 broke off: step 4: they differ");
}

}  // namespace
}  // namespace muster::engine
