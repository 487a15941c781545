#include "comm/roll_call.h"

#include <cstring>
#include <memory>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster::comm {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// Ranks that hear what was delivered to them.
class Ranks {
 public:
  explicit Ranks(int32_t count) {
    for (int32_t rank = 0; rank < count; ++rank) {
      bytes_.emplace_back(static_cast<size_t>(count * RollCall::entry_bytes(count)));
      calls_.push_back(std::make_unique<RollCall>(bytes_.back().data(), rank, count));
    }
  }

  RollCall& operator[](int32_t rank) { return *calls_[rank]; }
  void deliver(int32_t from, int32_t to) {
    std::memcpy(calls_[to]->entry(from), calls_[from]->entry(from), static_cast<size_t>(calls_[to]->entry_bytes()));
  }
  // What all find, which must be the same.
  std::optional<std::string> trouble() {
    const auto count = static_cast<int32_t>(calls_.size());
    for (int32_t from = 0; from < count; ++from) {
      for (int32_t to = 0; to < count; ++to) {
        if (from != to) deliver(from, to);
      }
    }
    for (const auto& call : calls_) {
      EXPECT_THAT(call->missing(), IsEmpty());
      EXPECT_EQ(call->trouble(), calls_[0]->trouble());
    }
    return calls_[0]->trouble();
  }

 private:
  std::vector<std::vector<std::byte>> bytes_;
  std::vector<std::unique_ptr<RollCall>> calls_;
};

// Everybody sends `bytes` to the next.
Posting ring(int32_t rank, int32_t ranks, int64_t bytes, std::string name = "exchange 'ring'") {
  Posting posting;
  posting.name = std::move(name);
  posting.sends.push_back({(rank + 1) % ranks, nullptr, bytes});
  posting.receives.push_back({(rank + ranks - 1) % ranks, nullptr, 500});
  return posting;
}

void begin_ring(Ranks& ranks) {
  for (int32_t rank = 0; rank < 3; ++rank) ranks[rank].begin(ring(rank, 3, 500));
}

TEST(RollCall, ranks_that_agree_go_on) {
  Ranks ranks(3);
  for (int round = 0; round < 3; ++round) {
    begin_ring(ranks);
    EXPECT_EQ(ranks.trouble(), std::nullopt);
  }
}

TEST(RollCall, who_has_not_answered_is_missing) {
  Ranks ranks(3);
  begin_ring(ranks);
  EXPECT_THAT(ranks[0].missing(), ElementsAre(1, 2));
  ranks.deliver(1, 0);
  EXPECT_THAT(ranks[0].missing(), ElementsAre(2));
  ranks.deliver(2, 0);
  EXPECT_THAT(ranks[0].missing(), IsEmpty());
  ranks[0].begin(ring(0, 3, 500));
  EXPECT_THAT(ranks[0].missing(), ElementsAre(1, 2)) << "answers to the last call do not count";
}

TEST(RollCall, other_bytes_are_found_by_all) {
  Ranks ranks(3);
  ranks[0].begin(ring(0, 3, 500));
  ranks[1].begin(ring(1, 3, 500));
  ranks[2].begin(ring(2, 3, 400));
  EXPECT_EQ(ranks.trouble(), "exchange 'ring': rank 2 sends 400 bytes to rank 0, which expects 500");
}

TEST(RollCall, other_names_are_found_by_all) {
  Ranks ranks(3);
  ranks[0].begin(ring(0, 3, 500));
  ranks[1].begin(ring(1, 3, 500));
  ranks[2].begin(ring(2, 3, 500, "barrier 'meet'"));
  EXPECT_EQ(ranks.trouble(), "ranks disagree: rank 2 calls barrier 'meet', rank 0 calls exchange 'ring'");
}

TEST(RollCall, names_that_differ_past_the_text_are_found) {
  const std::string name(600, 'x');
  Ranks ranks(2);
  ranks[0].begin(ring(0, 2, 500, name + "a"));
  ranks[1].begin(ring(1, 2, 500, name + "b"));
  EXPECT_THAT(ranks.trouble().value_or(""), HasSubstr("ranks disagree"));
}

TEST(RollCall, a_failure_is_told_in_its_own_words) {
  Ranks ranks(3);
  begin_ring(ranks);
  ranks.trouble();
  ranks[0].begin(Word::kLeft, "");
  ranks[1].begin(ring(1, 3, 500));
  ranks[2].begin(Word::kFailed, "the cause");
  EXPECT_EQ(ranks.trouble(), "the cause");
}

TEST(RollCall, an_abort_names_its_rank) {
  Ranks ranks(3);
  ranks[0].begin(ring(0, 3, 500));
  ranks[1].begin(Word::kAborted, "out of luck");
  ranks[2].begin(ring(2, 3, 500));
  EXPECT_EQ(ranks.trouble(), "rank 1 aborted: out of luck");
}

TEST(RollCall, those_who_left_are_named_unless_all_have) {
  Ranks ranks(3);
  for (const int32_t rank : {0, 2}) ranks[rank].begin(Word::kLeft, "");
  ranks[1].begin(ring(1, 3, 500));
  EXPECT_EQ(ranks.trouble(), "exchange 'ring': ranks 0, 2 left");
  for (int32_t rank = 0; rank < 3; ++rank) ranks[rank].begin(Word::kLeft, "");
  EXPECT_EQ(ranks.trouble(), std::nullopt);
}

}  // namespace
}  // namespace muster::comm
