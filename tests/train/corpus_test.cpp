#include "train/corpus.h"

#include <algorithm>
#include <cmath>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/error.h"

namespace muster::train {
namespace {

TEST(Corpus, CountsWhatGuessingCosts) {
  // Half a, a quarter b and c: 1.5 bits.
  std::string text;
  for (int i = 0; i < 100; ++i) text += "abac";
  const Corpus corpus(text, 8);
  EXPECT_EQ(corpus.vocabulary(), 3);
  EXPECT_NEAR(corpus.unigram_entropy(), 1.5 * std::log(2), 1e-12);
}

TEST(Corpus, KeepsTheLastTenthApart) {
  const std::string text = std::string(90, 'a') + std::string(10, 'b');
  const Corpus corpus(text, 4);
  std::vector<int32_t> tokens(5 * 40);
  corpus.draw(1, 2, 0, tokens);
  EXPECT_THAT(tokens, testing::Each(0));
  corpus.held_out(40, 0, tokens);
  EXPECT_THAT(tokens, testing::Each(1));
}

TEST(Corpus, DrawsTheSameForWhoeverAsks) {
  std::string text;
  for (int i = 0; i < 500; ++i) text += static_cast<char>('a' + i * i % 26);
  const Corpus corpus(text, 6);
  std::vector<int32_t> all(7 * 8);
  std::vector<int32_t> some(7 * 3);
  corpus.draw(5, 3, 0, all);
  corpus.draw(5, 3, 2, some);
  EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin() + 7 * 2));
  std::vector<int32_t> other(all.size());
  corpus.draw(5, 4, 0, other);
  EXPECT_NE(other, all);
  corpus.draw(6, 3, 0, other);
  EXPECT_NE(other, all);
}

TEST(Corpus, RefusesATextThatIsTooShort) {
  EXPECT_THROW(Corpus(std::string(80, 'a'), 8), InvalidArgument);
  EXPECT_NO_THROW(Corpus(std::string(90, 'a'), 8));
  EXPECT_THROW(Corpus("", 8), InvalidArgument);
}

}  // namespace
}  // namespace muster::train
