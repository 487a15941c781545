// The comparison of many ranks with one is worth something only if it fails when something is wrong.
#include <algorithm>
#include <atomic>
#include <cstring>

#include <gtest/gtest.h>

#include "support/problems.h"
#include "support/tamper.h"
#include "support/training.h"

namespace muster {
namespace {

constexpr int64_t kRows = 24;
constexpr int64_t kColumns = 20;
constexpr int64_t kRowBytes = kColumns * 4;

test::Training training(test::TamperingCommunicator::Change change) {
  test::Training t;
  t.problem = test::one_parameter({kRows, kColumns}, 3, Algorithm::kNorMuon);
  t.problem.wire = Dtype::kF32;
  t.problem.parameters.push_back(t.problem.parameters[0]);
  t.problem.parameters[1].name = "v";
  t.gradient = [](int32_t, size_t p, int64_t element, int step) {
    return test::made_up(p, element, 100 + static_cast<uint64_t>(step));
  };
  t.tamper = [change](std::unique_ptr<Communicator> inner) {
    return std::make_unique<test::TamperingCommunicator>(std::move(inner), change);
  };
  return t;
}

// What the comparison says when messages of the first step are changed; every call counts what it changed.
std::string found(std::string_view direction, const std::function<void(std::span<std::byte>)>& change) {
  std::atomic<int> changed = 0;
  const test::Training t = training([&](std::string_view label, int32_t, std::span<std::byte> message) {
    if (!label.starts_with("wave ") || !label.ends_with(direction) || changed++ > 0) return;
    change(message);
  });
  const std::string difference = test::difference(t.problem, test::train(t), test::train(test::on_one_rank(t))[0]);
  EXPECT_GT(changed, 0);
  return difference;
}

TEST(Comparison, IsQuietWhenNothingIsChanged) {
  EXPECT_EQ(found(" in", [](std::span<std::byte>) {}), "");
}

TEST(Comparison, CatchesASwappedPairOfRows) {
  const auto swap = [](std::span<std::byte> message) {
    ASSERT_GE(message.size(), 2 * kRowBytes);
    std::swap_ranges(message.begin(), message.begin() + kRowBytes, message.begin() + kRowBytes);
  };
  EXPECT_NE(found(" in", swap), "");
  EXPECT_NE(found(" out", swap), "");
}

// NorMuon's factor of another row.
TEST(Comparison, CatchesAWrongOwnersScale) {
  EXPECT_NE(found(" out",
                  [](std::span<std::byte> message) {
                    for (int64_t j = 0; j < kColumns; ++j) {
                      float value = 0;
                      std::memcpy(&value, message.data() + j * 4, 4);
                      value *= 1.0F + 0x1p-20F;
                      std::memcpy(message.data() + j * 4, &value, 4);
                    }
                  }),
            "");
}

TEST(Comparison, CatchesALostShard) {
  const auto lose = [](std::span<std::byte> message) { std::fill(message.begin(), message.end(), std::byte{0}); };
  EXPECT_NE(found(" in", lose), "");
  EXPECT_NE(found(" out", lose), "");
}

}  // namespace
}  // namespace muster
