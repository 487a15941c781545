// Orthogonalizes batches of matrices on device 0, placed as a test asks.
#pragma once

#include <bit>
#include <random>
#include <string>
#include <vector>

#include "device_memory.h"
#include "kernels/cuda/gemm_sm90/gemm.h"
#include "kernels/cuda/newton_schulz/orthogonalizer.h"

namespace muster::kernels::cuda {

class OrthogonalizeTest : public DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    if (!IsSkipped() && !gemm_available(0)) GTEST_SKIP() << "not sm_90, or not compiled for sm_90a";
  }
};

// Names tests that are split by shape, so that each is short under a sanitizer too.
inline std::string shape_name(const testing::TestParamInfo<MatrixShape>& info) {
  return std::to_string(info.param.rows) + "x" + std::to_string(info.param.columns);
}

// For tests of what follows the iterations, which have tests of their own and are slow under a sanitizer.
inline Coefficients one_iteration() {
  Coefficients one = coefficients("jordan");
  one.steps.resize(1);
  return one;
}

using Values = std::vector<float>;

// Waits for copies of the tests, because the streams of a queue do not.
inline void settle() { check(cudaDeviceSynchronize(), "settle"); }

inline float to_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return std::bit_cast<float>((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000);
}

inline size_t width_of(Dtype dtype) { return dtype == Dtype::kF32 ? 4 : 2; }

// Values that bf16 represents exactly.
inline Values random_matrix(MatrixShape shape, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 3);
  Values out(static_cast<size_t>(shape.rows * shape.columns));
  for (float& value : out) value = to_bf16(normal(random));
  return out;
}

// Placement of a batch: equally far apart and aligned to 16 bytes; aligned to 16 bytes; or one element off.
enum class Place : uint8_t { kEven, kUneven, kOdd };

// A batch on the device.
class OnDevice {
 public:
  OnDevice(Dtype wire, Place place, const std::vector<Values>& matrices)
      : wire_(wire), memory_(bytes_of(wire, matrices)) {
    const auto width = width_of(wire);
    size_t at = place == Place::kOdd ? width : 0;
    for (const Values& matrix : matrices) {
      starts_.push_back(at);
      at += (matrix.size() * width + 15) / 16 * 16;
      if (place != Place::kEven) at += 16 * (starts_.size() % 3);
    }
    write(matrices);
  }

  void write(const std::vector<Values>& matrices) {
    for (size_t m = 0; m < matrices.size(); ++m) {
      count_ = matrices[m].size();
      std::vector<uint16_t> halves;
      for (const float value : matrices[m])
        halves.push_back(static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16));
      const void* const from = wire_ == Dtype::kF32 ? static_cast<const void*>(matrices[m].data()) : halves.data();
      check(cudaMemcpy(at(m), from, count_ * width_of(wire_), cudaMemcpyHostToDevice), "write");
    }
  }

  Values read(size_t m) const {
    Values values(count_);
    if (wire_ == Dtype::kF32) {
      check(cudaMemcpy(values.data(), at(m), count_ * 4, cudaMemcpyDeviceToHost), "read");
      return values;
    }
    std::vector<uint16_t> halves(count_);
    check(cudaMemcpy(halves.data(), at(m), count_ * 2, cudaMemcpyDeviceToHost), "read");
    for (size_t i = 0; i < count_; ++i) values[i] = std::bit_cast<float>(static_cast<uint32_t>(halves[i]) << 16);
    return values;
  }

  void* at(size_t m) const { return memory_.data() + starts_[m]; }

 private:
  static size_t bytes_of(Dtype wire, const std::vector<Values>& matrices) {
    size_t bytes = 16;
    for (const Values& matrix : matrices) bytes += matrix.size() * width_of(wire) + 64;
    return bytes;
  }

  Dtype wire_;
  DeviceVector<std::byte> memory_;
  std::vector<size_t> starts_;
  size_t count_ = 0;
};

// The orthogonal factors of a batch in one call, without NorMuon.
inline std::vector<Values> orthogonalized(const OrthogonalizeOptions& options, MatrixShape shape,
                                          const std::vector<Values>& inputs, Place place = Place::kEven,
                                          Orthogonalizer::Gemms gemms = Orthogonalizer::Gemms::kBest) {
  LaunchQueue queue(nullptr);
  Orthogonalizer orthogonalizer(0, gemms);
  const OnDevice batch(options.wire, place, inputs);
  std::vector<UpdateMatrix> matrices;
  for (size_t m = 0; m < inputs.size(); ++m) matrices.push_back({batch.at(m), nullptr, nullptr});
  const int64_t bytes = orthogonalizer.workspace(shape, static_cast<int64_t>(inputs.size()), options);
  const DeviceVector<std::byte> workspace(static_cast<size_t>(bytes));
  settle();
  orthogonalizer.run({options, shape, matrices, {workspace.data(), bytes}}, queue);
  queue.synchronize();
  std::vector<Values> results;
  for (size_t m = 0; m < inputs.size(); ++m) results.push_back(batch.read(m));
  return results;
}

}  // namespace muster::kernels::cuda
