// What the kernel tests share: values, buffers with guards, and calls with their scratch.
#pragma once

#include <bit>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/newton_schulz.h"
#include "kernels/cpu/normuon.h"
#include "kernels/kernels.h"
#include "reference/reference.h"

namespace muster::kernels {

inline uint16_t to_bf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
inline float from_bf16(uint16_t x) { return std::bit_cast<float>(uint32_t{x} << 16); }

inline std::vector<uint16_t> to_bf16(const std::vector<float>& values) {
  std::vector<uint16_t> result;
  for (float x : values) result.push_back(to_bf16(x));
  return result;
}
inline std::vector<float> from_bf16(const std::vector<uint16_t>& values) {
  std::vector<float> result;
  for (uint16_t x : values) result.push_back(from_bf16(x));
  return result;
}
inline reference::Vector to_double(const std::vector<float>& values) { return {values.begin(), values.end()}; }

inline std::vector<float> random_values(int64_t count, uint32_t seed, float scale = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& x : values) x = normal(random);
  return values;
}

// Every instruction set this machine has.
inline std::vector<const cpu::Elementwise*> all_elementwise() {
  std::vector<const cpu::Elementwise*> sets{cpu::portable_elementwise()};
  if (cpu::avx2_elementwise() != nullptr) sets.push_back(cpu::avx2_elementwise());
  if (cpu::avx512_elementwise() != nullptr) sets.push_back(cpu::avx512_elementwise());
  return sets;
}

// Filled with NaN patterns, because callers may not rely on zeros.
class Scratch {
 public:
  explicit Scratch(int64_t bytes) : data_(static_cast<size_t>(bytes / 64 + 1)), bytes_(bytes) {}
  Workspace get() { return {data_.data(), bytes_}; }

 private:
  struct alignas(64) Line {
    uint32_t words[16];
    Line() { std::fill_n(words, 16, 0xffffffffu); }
  };
  std::vector<Line> data_;
  int64_t bytes_;
};

// The parts of orthogonalize, one by one.
class CpuParts {
 public:
  explicit CpuParts(int threads = 1, const cpu::Elementwise& elementwise = cpu::best_elementwise())
      : elementwise_(elementwise), pool_(threads) {}

  void orthogonalize(const cpu::NewtonSchulzOptions& options, MatrixShape shape, std::span<const cpu::MatrixPair> batch,
                     Workspace workspace) {
    cpu::newton_schulz({elementwise_, pool_, cpu::form_of(shape)}, options, shape, batch, workspace);
  }
  int64_t orthogonalize_workspace(MatrixShape shape) const {
    return pool_.threads() * cpu::newton_schulz_matrix_bytes(cpu::form_of(shape), shape);
  }
  void normuon(const cpu::NorMuonBatch& batch) { cpu::normuon(elementwise_, pool_, batch); }

 private:
  const cpu::Elementwise& elementwise_;
  cpu::ThreadPool pool_;
};

// f32 in, f32 out, one matrix, in the form given.
inline std::vector<float> orthogonalized(const Coefficients& set, MatrixShape shape, const std::vector<float>& input,
                                         cpu::Form form, int threads = 1) {
  cpu::ThreadPool pool(threads);
  cpu::NewtonSchulzOptions options;
  options.coefficients = set;
  options.input = Dtype::kF32;
  Scratch scratch(cpu::newton_schulz_matrix_bytes(form, shape));
  std::vector<float> output(input.size());
  const cpu::MatrixPair pair{input.data(), output.data()};
  cpu::newton_schulz({cpu::best_elementwise(), pool, form}, options, shape, std::span(&pair, 1), scratch.get());
  return output;
}

inline std::string name_of(MatrixShape shape) {
  return std::to_string(shape.rows) + "x" + std::to_string(shape.columns);
}

}  // namespace muster::kernels
