// What the tests of this folder begin with: a device, and a problem with something of everything.
#pragma once

#include <chrono>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#ifdef MUSTER_TEST_HOST_STREAM
#include "engine/stream/streamed.h"
#else
#include "kernels/cuda/device_memory.h"
#endif
#include "support/device_copies.h"
#include "support/problems.h"
#include "support/training.h"

namespace muster::test {

// On a GPU, or in the place of one, tests/engine/stream.
#ifdef MUSTER_TEST_HOST_STREAM
class OnDevice : public testing::Test {};
inline CostTable gpu_table() { return CostTable::cpu(); }

// Exchanges of ranks that are threads are enqueued with the rest.
constexpr bool kStreamed = true;
inline void over_streams(Training& t) {
  t.tamper = [](auto inner) { return std::make_unique<StreamedCommunicator>(std::move(inner)); };
}

inline void a_moment(void* = nullptr) { std::this_thread::sleep_for(std::chrono::milliseconds(2)); }

// A stream of the caller's, which takes its time.
class CallerStream {
 public:
  void* handle() { return &queue_; }
  void copy(void* to, const void* from, size_t bytes) {
    queue_.add([=] {
      a_moment();
      std::memcpy(to, from, bytes);
    });
  }
  void fill(void* to, int value, size_t bytes) {
    queue_.add([=] { std::memset(to, value, bytes); });
  }
  void wait() { queue_.wait(); }

 private:
  HostQueue queue_;
};
#else
class OnDevice : public kernels::cuda::DeviceTest {};
inline CostTable gpu_table() { return CostTable::h200(); }

// They go through host memory: NCCL wants a process a rank, tests/engine/nccl.
constexpr bool kStreamed = false;
inline void over_streams(Training&) {}

inline void a_moment(void*) { std::this_thread::sleep_for(std::chrono::milliseconds(2)); }

class CallerStream {
 public:
  CallerStream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream"); }
  CallerStream(const CallerStream&) = delete;
  CallerStream& operator=(const CallerStream&) = delete;
  ~CallerStream() { cudaStreamDestroy(stream_); }

  void* handle() { return stream_; }
  void copy(void* to, const void* from, size_t bytes) {
    check(cudaLaunchHostFunc(stream_, a_moment, nullptr), "wait");
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_), "copy");
  }
  void fill(void* to, int value, size_t bytes) { check(cudaMemsetAsync(to, value, bytes, stream_), "fill"); }
  void wait() { check(cudaStreamSynchronize(stream_), "wait"); }

 private:
  static void check(cudaError_t error, const char* what) { kernels::cuda::check(error, what); }

  cudaStream_t stream_ = nullptr;
};
#endif

inline Device gpu() { return {Device::Kind::kCuda, 0, nullptr}; }

inline OptimizerOptions gpu_options() {
  OptimizerOptions options;
  options.plan.cost = gpu_table();
  options.device = gpu();
  return options;
}

// Every algorithm in both dtypes, rows over all ranks.
inline Problem mixture(int32_t ranks) {
  Problem problem = one_parameter({48, 32}, ranks, Algorithm::kNorMuon);
  const auto add = [&](std::string name, Shape shape, Dtype dtype, Algorithm algorithm) {
    Parameter& p = problem.parameters.emplace_back(problem.parameters[0]);
    p.name = std::move(name);
    p.shape = std::move(shape);
    p.dtype = p.grad_dtype = dtype;
    p.algorithm = algorithm;
  };
  add("fused", {36, 20}, Dtype::kBf16, Algorithm::kMuon);
  problem.parameters.back().matrices.rows = {{12, {}, {}}, {12, {}, {}}, {12, {}, {}}};
  add("wide", {17, 130}, Dtype::kBf16, Algorithm::kNorMuon);
  add("embed", {190, 11}, Dtype::kBf16, Algorithm::kAdamW);
  add("head", {70, 33}, Dtype::kF32, Algorithm::kAdamW);
  add("gain", {230}, Dtype::kF32, Algorithm::kLion);
  add("bias", {301}, Dtype::kBf16, Algorithm::kLion);
  return problem;
}

// Trains the mixture on a device, with weights of every form and two groups.
inline Training mixed_training(int32_t ranks, const Device& device = gpu()) {
  Training t = training(mixture(ranks));
  t.options = gpu_options();
  t.options.device = device;
  t.options.groups.resize(2);
  t.group = [](size_t p) { return static_cast<int32_t>(p % 2); };
  t.form = [](size_t p) {
    constexpr WeightForm kForms[] = {WeightForm::kBf16Master, WeightForm::kBf16Mantissa, WeightForm::kBf16Stochastic,
                                     WeightForm::kBf16};
    return kForms[p % 4];
  };
  return t;
}

// A rank's f32 parameters and gradients, for tests that make their own calls.
class Shards {
 public:
  Shards(const Problem& problem, int32_t rank, const Device& device = gpu())
      : elements_(held_elements(problem, rank)), copies_(device) {
    for (size_t p = 0; p < elements_.size(); ++p) {
      host_.push_back(made_up_bytes(p, 1));
      memory.push_back({copies_.upload(host_[p])});
    }
  }

  std::vector<void*> gradients(uint64_t salt) {
    std::vector<void*> out;
    for (size_t p = 0; p < elements_.size(); ++p) {
      gradients_.push_back(made_up_bytes(p, 100 + salt));
      out.push_back(copies_.upload(gradients_.back()));
    }
    return out;
  }
  // The same with a value for one element of a parameter, if it is here.
  std::vector<void*> spoilt(uint64_t salt, size_t parameter, size_t local, float value) {
    std::vector<void*> out = gradients(salt);
    std::vector<std::byte>& bytes = gradients_[gradients_.size() - elements_.size() + parameter];
    store(Dtype::kF32, value, bytes.data() + local * sizeof(float));
    out[parameter] = copies_.upload(bytes);
    return out;
  }

  std::vector<float> read(const void* data, size_t parameter) {
    std::vector<std::byte> bytes(elements_[parameter].size() * sizeof(float));
    copies_.download(data, bytes);
    std::vector<float> out(elements_[parameter].size());
    std::memcpy(out.data(), bytes.data(), bytes.size());
    return out;
  }
  std::vector<std::vector<float>> weights() {
    std::vector<std::vector<float>> out;
    for (size_t p = 0; p < elements_.size(); ++p) out.push_back(read(memory[p].weight, p));
    return out;
  }

  std::vector<ParameterMemory> memory;

 private:
  std::vector<std::byte> made_up_bytes(size_t p, uint64_t salt) const {
    std::vector<std::byte> out(elements_[p].size() * sizeof(float));
    for (size_t i = 0; i < elements_[p].size(); ++i) {
      store(Dtype::kF32, made_up(p, elements_[p][i], salt), out.data() + i * sizeof(float));
    }
    return out;
  }

  std::vector<std::vector<int64_t>> elements_;
  std::vector<std::vector<std::byte>> host_;
  std::deque<std::vector<std::byte>> gradients_;
  DeviceCopies copies_;
};

}  // namespace muster::test
