#include "engine/checkpoint/checksum.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstring>
#include <string>

#include "base/hash.h"
#include "muster/error.h"

namespace muster::engine {

namespace {

static_assert(std::endian::native == std::endian::little, "words in memory are as in a safetensors file");

// The key of word i is kKey[i % kKeys] * block_key(i / kKeys): one multiplication per word in the loop, with a table
// that stays in the L1 cache.
constexpr uint64_t kKeys = 1024;
constexpr std::array<uint64_t, kKeys> kKey = [] {
  std::array<uint64_t, kKeys> keys{};
  for (uint64_t i = 0; i < kKeys; ++i) keys[i] = base::mix(i + base::kGolden) | 1;
  return keys;
}();

uint64_t block_key(uint64_t block) { return base::mix(~block + base::kGolden) | 1; }

template <typename Word>
uint64_t sum(const std::byte* data, uint64_t count, uint64_t index) {
  uint64_t total = 0;
  while (count > 0) {
    const uint64_t first = index % kKeys;
    const uint64_t words = std::min(count, kKeys - first);
    uint64_t in_block = 0;
    for (uint64_t i = 0; i < words; ++i) {
      Word word;
      std::memcpy(&word, data + i * sizeof(Word), sizeof(Word));
      in_block += kKey[first + i] * static_cast<uint64_t>(word);
    }
    total += in_block * block_key(index / kKeys);
    data += words * sizeof(Word);
    count -= words;
    index += words;
  }
  return total;
}

}  // namespace

uint64_t checksum(const void* data, int64_t count, int64_t index, int64_t width) {
  const auto* const bytes = static_cast<const std::byte*>(data);
  const auto words = static_cast<uint64_t>(count);
  const auto first = static_cast<uint64_t>(index);
  switch (width) {
    case 1:
      return sum<uint8_t>(bytes, words, first);
    case 2:
      return sum<uint16_t>(bytes, words, first);
    case 4:
      return sum<uint32_t>(bytes, words, first);
    // In halves: two flips of the highest bit of a 64-bit word would cancel, because keys are odd.
    case 8:
      return sum<uint32_t>(bytes, 2 * words, 2 * first);
    default:
      throw Internal("checksum of elements of " + std::to_string(width) + " bytes");
  }
}

uint64_t checksum(std::string_view text) {
  return checksum(text.data(), static_cast<int64_t>(text.size()), 0, 1) + base::mix(text.size() + base::kGolden);
}

}  // namespace muster::engine
