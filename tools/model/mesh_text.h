// "fsdp=8,tp=2" as a mesh, and "0:32" as layers.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "muster/layout.h"

namespace muster::model {

// The first axis varies slowest. `where` opens messages.
std::vector<MeshAxis> parse_axes(std::string_view text, std::string_view where);

// begin, begin + step, ... below end.
struct Slice {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t step = 1;
};

// Python-like slices and single indices, joined by commas: "0:32", "1:7,8:12", "3:60:4", "0,2,5:8".
std::vector<Slice> parse_slices(std::string_view text, std::string_view where);

}  // namespace muster::model
