// A text as tokens: one a byte, numbered by the bytes that occur in it.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace muster::train {

class Corpus {
 public:
  // Throws InvalidArgument for a text that is too short for two sequences of `context` tokens to learn from and to be
  // tested on.
  Corpus(std::string_view text, int64_t context);

  int64_t vocabulary() const { return vocabulary_; }
  // What guessing every token by its frequency in the whole text costs, in nats a token.
  double unigram_entropy() const { return unigram_entropy_; }
  uint64_t hash() const { return hash_; }

  // Sequences of context tokens and the one after, one behind the other in `out`: as many as fit. A batch of a step is
  // numbered; sequences `first` onwards are the same whoever asks for them.
  void draw(uint64_t seed, int64_t step, int64_t first, std::span<int32_t> out) const;
  // Sequences of the last tenth of the text, which draw() never shows: `first` onwards of `count`, evenly spaced.
  void held_out(int64_t count, int64_t first, std::span<int32_t> out) const;

 private:
  void copy(int64_t start, std::span<int32_t> out, int64_t sequence) const;

  int64_t context_;
  std::vector<int32_t> tokens_;
  int64_t learnt_ = 0;  // tokens before the last tenth
  int64_t vocabulary_ = 0;
  double unigram_entropy_ = 0;
  uint64_t hash_ = 0;
};

}  // namespace muster::train
