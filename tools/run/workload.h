// A model in training without the training: weights and gradients from a hash of what they belong to, so that every
// layout of a model gets the same logical values, and nobody has to hold or send them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/state/device_buffer.h"
#include "layout/partition.h"
#include "muster/optimizer.h"
#include "run/spectrum.h"

namespace muster::run {

struct WorkloadOptions {
  uint64_t seed = 1;
  float weight_size = 0.02F;  // standard deviations; the values are about normal
  float gradient_size = 0.001F;
  bool missing = false;  // leave some gradients out, on every rank or on some shards only; which, differs by step
  Spectrum spectrum = Spectrum::kNormal;  // of the gradients of matrices; those of AdamW and Lion are about normal
  Coefficients coefficients = muster::coefficients("polar_express");
};

// A rank's index for the one rank that holds everything.
inline constexpr int32_t kWhole = -1;

class Workload {
 public:
  // Keeps the problem by reference. Throws InvalidArgument naming the parameter whose dtype is neither f32 nor bf16.
  explicit Workload(const Problem& problem, const WorkloadOptions& options = {});
  Workload(Problem&& problem, const WorkloadOptions& options = {}) = delete;

  const Problem& problem() const { return problem_; }
  const WorkloadOptions& options() const { return options_; }
  // Groups that suit made-up gradients: one for matrices, one for AdamW, one for Lion, all with cautious decay.
  std::vector<Group> groups() const;

  // What a rank holds of a parameter, in elements; kWhole: all of it.
  int64_t elements(int32_t parameter, int32_t rank) const;
  int64_t replicas(int32_t parameter) const { return partitions_[parameter].replicas(); }
  // Gradients are in the parameter's grad dtype; those of kWhole always in f32.
  Dtype gradient_dtype(int32_t parameter, int32_t rank) const;
  // False: nothing of it is given. kWhole has one where any rank has.
  bool has_gradient(int32_t parameter, int32_t rank, int64_t step) const;

  // Write a rank's shard in the order of its storage. Gradients of the parameters differ by rank where Muster averages
  // them; kWhole then gets the averages: sums in the order of the ranks, in f32, over their number. What a rank does
  // not give is zero there.
  void fill_weights(int32_t parameter, int32_t rank, void* out) const;
  void fill_gradients(int32_t parameter, int32_t rank, int64_t step, void* out) const;

  // A stretch of a whole parameter, as kWhole sees it.
  std::vector<float> weights(int32_t parameter, layout::Interval elements) const;
  std::vector<float> gradients(int32_t parameter, layout::Interval elements, int64_t step) const;

  // A rank's part of what is the whole parameter elsewhere, in the parameter's dtype.
  void take_shard(int32_t parameter, int32_t rank, const void* whole, void* shard) const;
  // Where the element at a place of the rank's storage is in the whole parameter.
  int64_t element_at(int32_t parameter, int32_t rank, int64_t offset) const;

 private:
  uint64_t stream(int32_t parameter, int64_t step, int32_t rank) const;
  Values weight_values(int32_t parameter) const;
  Values gradient_values(int32_t parameter, int64_t step, int32_t rank) const;
  bool gives_gradient(int32_t parameter, int32_t position, int64_t step) const;

  const Problem& problem_;
  WorkloadOptions options_;
  std::vector<layout::Partition> partitions_;
};

// The same parameters on one rank that holds all of them.
Problem on_one_rank(Problem problem);

int32_t workload_group(Algorithm algorithm);
// The learning rate of a group falls from step to step, so that a change that gets lost shows.
double workload_lr(int32_t group, int64_t step);

// One rank's weights, at their start, in memory of a device; the kernels outlive them.
class Weights {
 public:
  Weights(const Workload& workload, int32_t rank, kernels::Kernels& kernels);

  std::vector<ParameterMemory> memory();
  std::vector<std::byte> shard(int32_t parameter) const;  // as it is now: no step may be under way

 private:
  const Problem& problem_;
  kernels::Kernels& kernels_;
  std::vector<int64_t> bytes_;
  std::vector<engine::DeviceBuffer> shards_;
};

// One rank's gradients of the last `kept` steps that were asked for, likewise.
class Gradients {
 public:
  Gradients(const Workload& workload, int32_t rank, kernels::Kernels& kernels, int64_t kept);

  // Makes them if they are not there, over those of `kept` steps before: these must be over.
  std::span<void* const> at(int64_t step);

 private:
  struct Slot {
    int64_t step = -1;
    std::vector<engine::DeviceBuffer> shards{};
    std::vector<void*> pointers{};
  };
  void fill(Slot& slot, int64_t step);

  const Workload& workload_;
  int32_t rank_;
  kernels::Kernels& kernels_;
  std::vector<Slot> slots_;
};

}  // namespace muster::run
