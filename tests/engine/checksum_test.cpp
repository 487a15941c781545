#include "engine/checkpoint/checksum.h"

#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace muster::engine {
namespace {

constexpr int64_t kWidths[] = {1, 2, 4, 8};

std::vector<unsigned char> random_bytes(int64_t bytes) {
  std::mt19937_64 random(7);
  std::vector<unsigned char> data(static_cast<size_t>(bytes));
  for (unsigned char& byte : data) byte = static_cast<unsigned char>(random());
  return data;
}

TEST(Checksums, AddUpHoweverATensorIsCut) {
  constexpr int64_t kElements = 5000;
  std::mt19937_64 random(1);
  for (const int64_t width : kWidths) {
    const auto data = random_bytes(kElements * width);
    const uint64_t whole = checksum(data.data(), kElements, 0, width);
    for (int round = 0; round < 50; ++round) {
      uint64_t sum = 0;
      for (int64_t begin = 0, end = 0; begin < kElements; begin = end) {
        end = std::min<int64_t>(kElements, begin + static_cast<int64_t>(random() % 1500));
        sum += checksum(data.data() + begin * width, end - begin, begin, width);
      }
      EXPECT_EQ(sum, whole) << "width " << width;
    }
  }
}

TEST(Checksums, ShowEveryFlippedBit) {
  constexpr int64_t kElements = 300;
  for (const int64_t width : kWidths) {
    // Across the end of a block of keys.
    const int64_t index = 1024 - 150;
    auto data = random_bytes(kElements * width);
    const uint64_t good = checksum(data.data(), kElements, index, width);
    for (size_t bit = 0; bit < data.size() * 8; ++bit) {
      data[bit / 8] ^= static_cast<unsigned char>(1 << bit % 8);
      EXPECT_NE(checksum(data.data(), kElements, index, width), good) << "width " << width << " bit " << bit;
      data[bit / 8] ^= static_cast<unsigned char>(1 << bit % 8);
    }
  }
}

// Odd keys alone would let two topmost bits of 64 cancel; hence the halves.
TEST(Checksums, ShowTwoFlippedSigns) {
  constexpr size_t kElements = 200;
  for (const size_t width : {2, 4, 8}) {
    auto data = random_bytes(static_cast<int64_t>(kElements * width));
    const auto sum = [&] { return checksum(data.data(), kElements, 0, static_cast<int64_t>(width)); };
    const uint64_t good = sum();
    for (size_t a = 0; a < kElements; ++a) {
      data[a * width + width - 1] ^= 0x80;
      for (size_t b = 0; b < a; ++b) {
        data[b * width + width - 1] ^= 0x80;
        ASSERT_NE(sum(), good) << "width " << width << " elements " << a << ", " << b;
        data[b * width + width - 1] ^= 0x80;
      }
      data[a * width + width - 1] ^= 0x80;
    }
  }
}

TEST(Checksums, ShowSwappedShiftedAndZeroedElements) {
  constexpr int64_t kElements = 4096;
  for (const int64_t width : kWidths) {
    const auto data = random_bytes(kElements * width);
    const uint64_t good = checksum(data.data(), kElements, 0, width);
    const auto expect_noticed = [&](const char* what, const std::vector<unsigned char>& changed) {
      if (changed == data) return;
      EXPECT_NE(checksum(changed.data(), kElements, 0, width), good) << what << ", width " << width;
    };
    for (const int64_t distance : {1, 2, 7, 1024, 2048}) {
      auto swapped = data;
      std::swap_ranges(swapped.begin(), swapped.begin() + width, swapped.begin() + distance * width);
      expect_noticed("swapped elements", swapped);
      auto shifted = data;
      std::rotate(shifted.begin(), shifted.begin() + distance * width, shifted.end());
      expect_noticed("shifted", shifted);
      auto zeroed = data;
      std::fill_n(zeroed.begin() + 512, distance * width, 0);
      expect_noticed("zeroed", zeroed);
    }
    auto blocks = data;
    std::swap_ranges(blocks.begin(), blocks.begin() + 1024 * width, blocks.begin() + 2048 * width);
    expect_noticed("swapped blocks", blocks);
  }
}

TEST(Checksums, OfTextsCountTheirBytes) {
  EXPECT_NE(checksum(std::string_view("")), checksum(std::string_view("\0", 1)));
  EXPECT_NE(checksum(std::string_view("ab")), checksum(std::string_view("ba")));
}

}  // namespace
}  // namespace muster::engine
