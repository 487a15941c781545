// The same bytes on the host and on the device, for kernels whose results must be equal there.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "device_memory.h"
#include "kernels/cuda/runtime/launch_queue.h"
#include "muster/problem.h"

namespace muster::kernels::cuda {

using Bytes = std::vector<std::byte>;

inline size_t element_bytes(Dtype dtype) { return dtype == Dtype::kF32 ? 4 : 2; }

// Normal values, a few of them special.
inline Bytes random_bytes(Dtype dtype, size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 1);
  Bytes out(count * element_bytes(dtype));
  for (size_t i = 0; i < count; ++i) {
    const float value = i % 97 == 3 ? 0.0F : i % 89 == 5 ? 1e-30F : normal(random);
    const auto bits = std::bit_cast<uint32_t>(value);
    const auto half = static_cast<uint16_t>(bits >> 16);
    if (dtype == Dtype::kF32) {
      std::memcpy(out.data() + i * 4, &bits, 4);
    } else {
      std::memcpy(out.data() + i * 2, &half, 2);
    }
  }
  return out;
}

struct Twin {
  explicit Twin(Bytes bytes) : host(std::move(bytes)), device(host) {}
  bool same() const { return device.values() == host; }
  std::byte* here(size_t offset = 0) { return host.data() + offset; }
  std::byte* there(size_t offset = 0) { return device.data() + offset; }
  Bytes host;
  DeviceVector<std::byte> device;
};

class Twins {
 public:
  Twin& add(Bytes bytes) { return *twins_.emplace_back(std::make_unique<Twin>(std::move(bytes))); }
  Twin& add(Dtype dtype, size_t count, unsigned seed) { return add(random_bytes(dtype, count, seed)); }
  // Which of them, by the order they were added in, differs first; -1: none.
  int differing() const {
    for (size_t i = 0; i < twins_.size(); ++i) {
      if (!twins_[i]->same()) return static_cast<int>(i);
    }
    return -1;
  }

 private:
  std::vector<std::unique_ptr<Twin>> twins_;
};

// A test with a queue. Its stream does not wait for copies and the like that tests make beside it: queue() does.
class QueueTest : public DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    if (!IsSkipped()) queue_ = std::make_unique<LaunchQueue>(nullptr);
  }
  LaunchQueue& queue() {
    check(cudaDeviceSynchronize(), "before the test");
    return *queue_;
  }

 private:
  std::unique_ptr<LaunchQueue> queue_;
};

// A block, and where in its memory it begins. Around vectors of 4 and chunks of 4096 elements; dense and not; rows that
// are aligned and rows that are not; many rows a chunk, and many chunks a row.
struct Extent {
  int64_t rows;
  int64_t columns;
  int64_t stride;
  int64_t first = 0;

  size_t elements() const { return static_cast<size_t>(first + rows * stride + columns); }
};
inline constexpr Extent kExtents[] = {
    {1, 1, 1},       {3, 300, 300},   {5, 257, 300},      {1, 4097, 4097}, {7, 5000, 5004},  {7, 5000, 5003},
    {0, 5, 5},       {5, 0, 5},       {1, 9000, 9000, 1}, {9, 64, 96},     {500, 33, 40},    {500, 33, 40, 3},
    {1, 4096, 4096}, {2, 4096, 8192}, {300, 3, 3},        {6000, 1, 2},    {70, 300, 304, 2}};

}  // namespace muster::kernels::cuda
