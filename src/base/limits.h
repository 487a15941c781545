// Limits on what a file may ask for. Real models stay far below; a hostile file of a few bytes must not exhaust memory.
#pragma once

#include <cstdint>

namespace muster::base {

inline constexpr int64_t kMaxFileBytes = int64_t{256} << 20;
inline constexpr int64_t kMaxHeaderBytes = 100'000'000;  // of a safetensors file, as its reference reader allows
inline constexpr int64_t kMaxJsonValues = int64_t{1} << 24;
inline constexpr int kMaxJsonDepth = 32;
inline constexpr int64_t kMaxNameBytes = 1024;
inline constexpr int64_t kMaxRanks = 1 << 17;
inline constexpr int kMaxAxes = 32;
inline constexpr int kMaxMeshes = 64;
inline constexpr int64_t kMaxHeads = 65536;

struct Limits {
  int64_t parameters = 1'000'000;              // after expanding layers
  int64_t parameter_bytes = int64_t{1} << 29;  // in memory, blocks and explicit sizes included
};

}  // namespace muster::base
