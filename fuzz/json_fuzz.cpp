#include "entry_points.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  muster::fuzz::feed_json({reinterpret_cast<const char*>(data), size});
  return 0;
}
