// State that leaves a device and comes back.
#include <filesystem>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "on_device.h"

namespace muster {
namespace {

using DeviceState = test::OnDevice;
using testing::Each;

constexpr int kBefore = 3;
constexpr int kAfter = 3;

// Steps `first` onwards of the same training.
test::Training part(int32_t ranks, int first, int steps) {
  test::Training t = test::mixed_training(ranks);
  t.steps = steps;
  t.options.groups[1].every = 2;
  t.options.seed = 7;
  const auto gradient = t.gradient;
  t.gradient = [=](int32_t r, size_t p, int64_t element, int step) { return gradient(r, p, element, first + step); };
  return t;
}

struct Directory {
  Directory() : path(std::filesystem::path(testing::TempDir()) / ("muster-device-" + std::to_string(::getpid()))) {
    std::filesystem::remove_all(path);
  }
  ~Directory() { std::filesystem::remove_all(path); }
  std::filesystem::path path;
};

TEST_F(DeviceState, ImportedWhereAnotherStopped) {
  for (const int32_t ranks : {1, 2}) {
    const std::vector<test::RankMemory> before = test::train(part(ranks, 0, kBefore));
    ASSERT_THAT(test::errors(before), Each(""));
    test::Training after = part(ranks, kBefore, kAfter);
    after.before = [&](Optimizer& optimizer) {
      optimizer.import_state(before[0].state);
      EXPECT_EQ(optimizer.steps(), kBefore);
      for (const StateTensor& tensor : before[0].state) {
        EXPECT_EQ(optimizer.export_state(tensor.name).data, tensor.data) << tensor.name;
      }
    };
    const test::RankMemory whole = test::train(test::on_one_rank(part(ranks, 0, kBefore + kAfter)))[0];
    EXPECT_EQ(test::difference(after.problem, test::train(after), whole), "") << ranks << " ranks";
  }
}

// In the middle of replayed steps: what was recorded before goes on afterwards.
TEST_F(DeviceState, ImportedBetweenRecordedSteps) {
  const test::RankMemory before = test::train(part(1, 0, kBefore))[0];
  ASSERT_EQ(before.error, "");
  test::Training twice = part(1, kBefore, 2 * kAfter);
  const auto gradient = part(1, kBefore, kAfter).gradient;
  twice.gradient = [=](int32_t r, size_t p, int64_t element, int step) {
    return gradient(r, p, element, step % kAfter);
  };
  twice.before_step = [&](Optimizer& optimizer, int step) {
    if (step % kAfter == 0) optimizer.import_state(before.state);
  };
  const test::RankMemory whole = test::train(part(1, 0, kBefore + kAfter))[0];
  EXPECT_EQ(test::difference(twice.problem, test::train(twice), whole), "");
}

TEST_F(DeviceState, SavedAndLoadedByOtherRanksAndTheCpu) {
  const Directory directory;
  test::Training before = part(3, 0, kBefore);
  before.after = [&](Optimizer& optimizer) { optimizer.save(directory.path); };
  const std::vector<test::RankMemory> saved = test::train(before);
  ASSERT_THAT(test::errors(saved), Each(""));
  test::Training after = part(2, kBefore, kAfter);
  after.before = [&](Optimizer& optimizer) { optimizer.load(directory.path); };
  const test::RankMemory whole = test::train(part(1, 0, kBefore + kAfter))[0];
  EXPECT_EQ(test::difference(after.problem, test::train(after), whole), "");

  test::Training on_cpu = part(1, kBefore, 0);
  on_cpu.options.device = {};
  on_cpu.before = after.before;
  EXPECT_EQ(test::difference(before.problem, saved, test::train(on_cpu)[0]), "");
}

}  // namespace
}  // namespace muster
