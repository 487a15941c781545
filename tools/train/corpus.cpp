#include "train/corpus.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "muster/error.h"
#include "run/hash.h"

namespace muster::train {

Corpus::Corpus(std::string_view text, int64_t context) : context_(context) {
  const int64_t size = std::ssize(text);
  learnt_ = size - size / 10;
  if (size / 10 < context + 1) {
    throw InvalidArgument(
        fmt::format("a text of {} bytes: a tenth of it is less than a sequence of {} and one", size, context));
  }
  std::array<int64_t, 256> counts{};
  for (const char c : text) ++counts[static_cast<uint8_t>(c)];
  std::array<int32_t, 256> number{};
  for (size_t byte = 0; byte < counts.size(); ++byte) {
    if (counts[byte] == 0) continue;
    number[byte] = static_cast<int32_t>(vocabulary_++);
    const double share = static_cast<double>(counts[byte]) / static_cast<double>(size);
    unigram_entropy_ -= share * std::log(share);
  }
  tokens_.reserve(text.size());
  for (const char c : text) {
    tokens_.push_back(number[static_cast<uint8_t>(c)]);
    hash_ = run::mix(hash_ + static_cast<uint8_t>(c) + run::kGolden);
  }
}

void Corpus::draw(uint64_t seed, int64_t step, int64_t first, std::span<int32_t> out) const {
  const uint64_t stream = run::hash(run::mix(seed + run::kGolden), step);
  const auto starts = static_cast<uint64_t>(learnt_ - context_);
  for (int64_t i = 0; i < std::ssize(out) / (context_ + 1); ++i) {
    copy(static_cast<int64_t>(run::hash(stream, first + i) % starts), out, i);
  }
}

void Corpus::held_out(int64_t count, int64_t first, std::span<int32_t> out) const {
  const int64_t starts = std::ssize(tokens_) - learnt_ - context_;
  for (int64_t i = 0; i < std::ssize(out) / (context_ + 1); ++i) {
    copy(learnt_ + (first + i) * starts / count, out, i);
  }
}

void Corpus::copy(int64_t start, std::span<int32_t> out, int64_t sequence) const {
  std::copy_n(tokens_.begin() + start, context_ + 1, out.begin() + sequence * (context_ + 1));
}

}  // namespace muster::train
