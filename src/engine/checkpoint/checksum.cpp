#include "engine/checkpoint/checksum.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstring>
#include <string>

#include "muster/error.h"

namespace muster::engine {

namespace {

static_assert(std::endian::native == std::endian::little, "words are read as they lie in a safetensors file");

// The finalizer of splitmix64.
constexpr uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// The key of word i is key[i % 1024] * block_key(i / 1024): one multiplication a word in the loop, from a table that
// stays in the first cache.
constexpr uint64_t kKeys = 1024;
constexpr std::array<uint64_t, kKeys> kKey = [] {
  std::array<uint64_t, kKeys> keys{};
  for (uint64_t i = 0; i < kKeys; ++i) keys[i] = mix(i) | 1;
  return keys;
}();

uint64_t block_key(uint64_t block) { return mix(~block) | 1; }

template <typename Word>
uint64_t sum(const std::byte* data, uint64_t count, uint64_t index) {
  uint64_t total = 0;
  while (count > 0) {
    const uint64_t first = index % kKeys;
    const uint64_t words = std::min(count, kKeys - first);
    uint64_t block = 0;
    for (uint64_t i = 0; i < words; ++i) {
      Word word;
      std::memcpy(&word, data + i * sizeof(Word), sizeof(Word));
      block += kKey[first + i] * static_cast<uint64_t>(word);
    }
    total += block * block_key(index / kKeys);
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
    // In halves: two changes of a topmost bit would cancel, the keys being odd.
    case 8:
      return sum<uint32_t>(bytes, 2 * words, 2 * first);
    default:
      throw Internal("checksum of elements of " + std::to_string(width) + " bytes");
  }
}

uint64_t checksum(std::string_view text) {
  return checksum(text.data(), static_cast<int64_t>(text.size()), 0, 1) + mix(text.size());
}

}  // namespace muster::engine
