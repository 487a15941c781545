#include "kernels/cuda/runtime/decisions.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "twin.h"

namespace muster::kernels::cuda {
namespace {

constexpr int64_t kParameters = 1300;  // more than a block has threads
constexpr size_t kWords = SumOfSquares::kWords;

class Decisions : public QueueTest {
 protected:
  void SetUp() override {
    QueueTest::SetUp();
    if (IsSkipped()) return;
    verdict_ = std::make_unique<DeviceVector<Verdict>>(std::vector<Verdict>(1, {0.5, 7, 5}));
    active_ = std::make_unique<DeviceVector<int32_t>>(std::vector<int32_t>(kParameters, 9));
    sitting_ = std::make_unique<DeviceVector<int32_t>>(std::vector<int32_t>(kParameters, 9));
  }
  void decide(const int64_t* words, int64_t zeros, const int64_t* present) {
    cuda::decide({.words = words,
                  .zeros = zeros,
                  .present = present,
                  .active = active_->data(),
                  .sitting = sitting_->data(),
                  .parameters = kParameters,
                  .verdict = verdict_->data()},
                 queue());
  }
  void decide_without_parameters(const int64_t* word) {
    cuda::decide({.words = word, .zeros = 1, .verdict = verdict_->data()}, queue());
  }
  void refuse(const int64_t* words, int64_t count) {
    cuda::refuse({.words = words,
                  .count = count,
                  .active = active_->data(),
                  .sitting = sitting_->data(),
                  .parameters = kParameters,
                  .verdict = verdict_->data()},
                 queue());
  }
  void clip(Clip clip) {
    clip.verdict = verdict_->data();
    cuda::clip(clip, queue());
  }
  void count(int64_t* updates) {
    cuda::count({.active = active_->data(), .parameters = kParameters, .updates = updates}, queue());
  }
  Verdict found() {
    queue().synchronize();
    return verdict_->values()[0];
  }
  std::vector<int32_t> found_active() {
    queue().synchronize();
    return active_->values();
  }
  std::vector<int32_t> found_sitting() {
    queue().synchronize();
    return sitting_->values();
  }

 private:
  std::unique_ptr<DeviceVector<Verdict>> verdict_;
  std::unique_ptr<DeviceVector<int32_t>> active_;
  std::unique_ptr<DeviceVector<int32_t>> sitting_;
};

// As summed over ranks: how many of them have a gradient, 0 for every third parameter.
std::vector<int64_t> some_present() {
  std::vector<int64_t> present(kParameters);
  for (int64_t p = 0; p < kParameters; ++p) present[static_cast<size_t>(p)] = p % 3 << 32;
  return present;
}
std::vector<int32_t> as_active(const std::vector<int64_t>& present) {
  std::vector<int32_t> active;
  for (const int64_t word : present) active.push_back(word != 0 ? 1 : 0);
  return active;
}

TEST_F(Decisions, GoesWithTheParametersThatArePresent) {
  const DeviceVector<int64_t> words(std::vector<int64_t>{0, 0, 0, 1});
  const DeviceVector<int64_t> present(some_present());
  decide(words.data(), 3, present.data());
  EXPECT_EQ(found().go, 1);
  EXPECT_EQ(found().clip, 1);
  EXPECT_EQ(found().norm, 0);
  std::vector<int32_t> sitting = as_active(some_present());
  EXPECT_EQ(found_active(), sitting);
  for (int32_t& flag : sitting) flag = 1 - flag;
  EXPECT_EQ(found_sitting(), sitting);
}

TEST_F(Decisions, DoesNotGoIfAnyWordIsSet) {
  const DeviceVector<int64_t> words(std::vector<int64_t>{0, 0, 0, 1});
  const DeviceVector<int64_t> present(some_present());
  decide(words.data(), 4, present.data());
  EXPECT_EQ(found().go, 0);
  EXPECT_EQ(found().clip, 1);
  EXPECT_EQ(found_active(), std::vector<int32_t>(kParameters, 0));
  EXPECT_EQ(found_sitting(), std::vector<int32_t>(kParameters, 0));
}

TEST_F(Decisions, RefusesAfterItDecided) {
  std::vector<int64_t> words(2000, 0);
  const DeviceVector<int64_t> none(words);
  words[1999] = int64_t{1} << 40;
  const DeviceVector<int64_t> one(words);
  const DeviceVector<int64_t> present(some_present());
  decide(none.data(), 1, present.data());
  refuse(none.data(), 2000);
  EXPECT_EQ(found().go, 1);
  EXPECT_EQ(found_active(), as_active(some_present()));
  refuse(one.data(), 1999);
  EXPECT_EQ(found().go, 1);
  refuse(one.data(), 2000);
  EXPECT_EQ(found().go, 0);
  EXPECT_EQ(found_active(), std::vector<int32_t>(kParameters, 0));
  EXPECT_EQ(found_sitting(), std::vector<int32_t>(kParameters, 0));
}

TEST_F(Decisions, CountsUpdates) {
  const DeviceVector<int64_t> zero(std::vector<int64_t>{0});
  const DeviceVector<int64_t> present(some_present());
  const DeviceVector<int64_t> updates(std::vector<int64_t>(kParameters, int64_t{1} << 33));
  decide(zero.data(), 1, present.data());
  for (int twice = 0; twice < 2; ++twice) count(updates.data());
  queue().synchronize();
  std::vector<int64_t> expected;
  for (const int64_t word : some_present()) expected.push_back((int64_t{1} << 33) + (word != 0 ? 2 : 0));
  EXPECT_EQ(updates.values(), expected);
}

SumOfSquares random_sum(unsigned seed, size_t count, float scale) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  SumOfSquares sum;
  sum.add(values.data(), 1, static_cast<int64_t>(count), 0);
  return sum;
}

double expected_clip(double norm, double max_norm) {
  return max_norm > 0 ? std::min(1.0, max_norm / (norm + 1e-6)) : 1.0;
}

TEST_F(Decisions, TheNormHasTheBitsOfTheHost) {
  const DeviceVector<int64_t> zero(std::vector<int64_t>{0});
  unsigned seed = 0;
  for (const float scale : {1e-38F, 1e-20F, 1e-3F, 1.0F, 1e18F}) {
    for (const size_t count : {1, 2, 3, 1000}) {
      for (const double max_norm : {0.0, 0.3, 1e30}) {
        // Three sums, the first one added up over several ranks, without carries.
        std::vector<int64_t> words;
        SumOfSquares total;
        for (int s = 0; s < 3; ++s) {
          const SumOfSquares sum = random_sum(++seed, count, scale);
          const int64_t ranks = s == 0 ? 1000 : 1;
          for (size_t w = 0; w < kWords; ++w) words.push_back(sum.words()[w] * ranks);
          for (int64_t r = 0; r < ranks; ++r) total.merge(sum);
        }
        const DeviceVector<int64_t> device(words);
        decide_without_parameters(zero.data());
        clip({.words = device.data(), .sums = 3, .grad_scale = -0.7, .max_norm = max_norm});
        const double norm = std::sqrt(total.value()) * 0.7;
        EXPECT_EQ(found().norm, norm);
        EXPECT_EQ(found().clip, expected_clip(norm, max_norm));
        EXPECT_EQ(found().go, 1);
      }
    }
  }
}

TEST_F(Decisions, ANormThatIsNotANumberClipsNothing) {
  std::vector<int64_t> words(kWords, 0);
  words[SumOfSquares::kLimbs] = 1;
  const DeviceVector<int64_t> nan(words);
  clip({.words = nan.data(), .sums = 1, .grad_scale = 1, .max_norm = 0.5});
  EXPECT_TRUE(std::isnan(found().norm));
  EXPECT_EQ(found().clip, 1);

  words[SumOfSquares::kLimbs] = 0;
  words[SumOfSquares::kLimbs + 1] = 3;
  const DeviceVector<int64_t> infinite(words);
  clip({.words = infinite.data(), .sums = 1, .grad_scale = 1, .max_norm = 0.5});
  EXPECT_EQ(found().norm, std::numeric_limits<double>::infinity());
  EXPECT_EQ(found().clip, 0);

  const DeviceVector<int64_t> zero(std::vector<int64_t>(kWords, 0));
  clip({.words = zero.data(), .sums = 1, .grad_scale = 1, .max_norm = 0.5});
  EXPECT_EQ(found().norm, 0);
  EXPECT_EQ(found().clip, 1);
}

}  // namespace
}  // namespace muster::kernels::cuda
