#include "rank_training.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <stdexcept>

#ifdef MUSTER_BITS_CUDA
#include <cuda_runtime_api.h>
#endif

using namespace muster;

namespace {

using Indices = std::vector<int64_t>;

// About uniform in -1 to 1.
float made_up(size_t parameter, int64_t element, uint64_t salt) {
  uint64_t z = (parameter * 0x9e3779b97f4a7c15 + static_cast<uint64_t>(element) * 0xbf58476d1ce4e5b9) ^ (salt << 32);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  z ^= z >> 31;
  return static_cast<float>(static_cast<int64_t>(z >> 40)) / static_cast<float>(1 << 23) - 1.0F;
}

uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// The pieces of n things that each of `parts` coordinates has.
std::vector<std::pair<int64_t, int64_t>> pieces(const Placement& placement, int64_t n, int32_t parts) {
  std::vector<std::pair<int64_t, int64_t>> out;
  int64_t begin = 0;
  const int64_t chunk = (n + parts - 1) / parts;
  for (int32_t i = 0; i < parts; ++i) {
    const int64_t size =
        placement.sizes.empty() ? std::clamp<int64_t>(n - begin, 0, chunk) : placement.sizes[static_cast<size_t>(i)];
    out.emplace_back(begin, begin + size);
    begin += size;
  }
  return out;
}

// The elements of a parameter that a rank holds, in the order of its storage: ranges per dim, then flat ranges.
Indices held(const Problem& problem, const Parameter& p, int32_t rank) {
  const Mesh& mesh = problem.meshes[static_cast<size_t>(p.layout.mesh)];
  std::vector<std::pair<int64_t, int64_t>> box;
  for (const int64_t size : p.shape) box.emplace_back(0, size);
  std::vector<int32_t> order = p.layout.order;
  for (int32_t axis = 0; order.size() < mesh.axes.size(); ++axis) order.push_back(axis);
  for (const int32_t axis : order) {
    const Placement& placement = p.layout.placements[static_cast<size_t>(axis)];
    if (placement.kind != Placement::Kind::kShard) continue;
    auto& [begin, end] = box[static_cast<size_t>(placement.dim)];
    const auto own =
        pieces(placement, end - begin,
               mesh.axes[static_cast<size_t>(axis)].size)[static_cast<size_t>(mesh.coordinate(rank, axis))];
    end = begin + own.second;
    begin += own.first;
  }
  Indices out;
  for (int64_t i = 0; i < element_count(p.shape); ++i) {
    bool inside = true;
    int64_t rest = i;
    for (size_t d = p.shape.size(); d-- > 0; rest /= p.shape[d]) {
      const int64_t at = rest % p.shape[d];
      inside = inside && at >= box[d].first && at < box[d].second;
    }
    if (inside) out.push_back(i);
  }
  for (size_t axis = 0; axis < mesh.axes.size(); ++axis) {
    const Placement& placement = p.layout.placements[axis];
    if (placement.kind != Placement::Kind::kFlat) continue;
    const auto [begin, end] =
        pieces(placement, std::ssize(out),
               mesh.axes[axis].size)[static_cast<size_t>(mesh.coordinate(rank, static_cast<int>(axis)))];
    out = Indices(out.begin() + begin, out.begin() + end);
  }
  return out;
}

// Bytes where the case computes.
class Memory {
 public:
  Memory(const Device& device, std::vector<std::byte> values) : on_gpu_(device.kind == Device::Kind::kCuda) {
    bytes_ = std::move(values);
    data_ = bytes_.data();
#ifdef MUSTER_BITS_CUDA
    if (!on_gpu_) return;
    check(cudaMalloc(&data_, std::max<size_t>(bytes_.size(), 1)));
    check(cudaMemcpy(data_, bytes_.data(), bytes_.size(), cudaMemcpyHostToDevice));
#else
    if (on_gpu_) throw std::runtime_error("built without CUDA");
#endif
  }
  void* data() const { return bytes_.empty() ? nullptr : data_; }
  std::vector<std::byte> values() const {
    std::vector<std::byte> out = bytes_;
#ifdef MUSTER_BITS_CUDA
    if (on_gpu_) check(cudaMemcpy(out.data(), data_, out.size(), cudaMemcpyDeviceToHost));
#endif
    return out;
  }

 private:
#ifdef MUSTER_BITS_CUDA
  static void check(cudaError_t error) {
    if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
  }
#endif
  bool on_gpu_;
  std::vector<std::byte> bytes_;  // as they were, for a GPU
  void* data_ = nullptr;          // of a GPU: lives as long as the process
};

template <typename T>
void append(std::vector<std::byte>& out, T value) {
  const auto* const bytes = reinterpret_cast<const std::byte*>(&value);
  out.insert(out.end(), bytes, bytes + sizeof(T));
}

// The weights of a shard, and what the form keeps beside them.
std::pair<std::vector<std::byte>, std::vector<std::byte>> first_weights(size_t p, const Indices& held,
                                                                        WeightForm form) {
  std::vector<std::byte> data;
  std::vector<std::byte> extra;
  for (const int64_t element : held) {
    const float value = made_up(p, element, 1);
    const auto bits = std::bit_cast<uint32_t>(value);
    if (form == WeightForm::kF32) {
      append(data, value);
      continue;
    }
    append(data, form == WeightForm::kBf16Mantissa ? static_cast<uint16_t>(bits >> 16) : to_bf16(value));
    if (form == WeightForm::kBf16Master) append(extra, value);
    if (form == WeightForm::kBf16Mantissa) append(extra, static_cast<uint16_t>(bits));
  }
  return {std::move(data), std::move(extra)};
}

class Rank {
 public:
  Rank(const Case& c, int32_t rank) : case_(c), rank_(rank) {
    const std::vector<Parameter>& parameters = c.problem.parameters;
    for (size_t p = 0; p < parameters.size(); ++p) {
      held_.push_back(held(c.problem, parameters[p], rank));
      ParameterMemory memory;
      memory.form = is_matrix_algorithm(parameters[p].algorithm) ? c.form : WeightForm::kF32;
      auto [data, extra] = first_weights(p, held_[p], memory.form);
      memory.weight = keep(std::move(data));
      memory.extra = keep(std::move(extra));
      if (c.holders) add_state(static_cast<int32_t>(p), memory);
      memory_.push_back(memory);
    }
  }

  const std::vector<ParameterMemory>& memory() const { return memory_; }

  std::vector<void*> gradients(int step) {
    std::vector<void*> out;
    for (size_t p = 0; p < held_.size(); ++p) {
      const bool absent = case_.missing && (static_cast<size_t>(step) + p) % 3 == 0;
      const bool spoilt = case_.step.non_finite != NonFinite::kIgnore && step == 1 && p == 2;
      // What Muster averages differs from rank to rank.
      const uint64_t salt = static_cast<uint64_t>(10 + step) + (case_.problem.grad_sync ? 1000U * (rank_ + 1U) : 0U);
      std::vector<std::byte> values;
      for (const int64_t element : held_[p]) {
        append(values, spoilt && element == 7 ? std::numeric_limits<float>::infinity() : made_up(p, element, salt));
      }
      out.push_back(absent ? nullptr : keep(std::move(values)));
    }
    return out;
  }

  std::vector<std::byte> bytes() const {
    std::vector<std::byte> out;
    for (const auto& memory : kept_) {
      const std::vector<std::byte> values = memory->values();
      out.insert(out.end(), values.begin(), values.end());
    }
    return out;
  }
  // Gradients come after this, and are not part of the result.
  void end_of_weights() { weights_ = kept_.size(); }
  void drop_gradients() { kept_.resize(weights_); }

 private:
  void* keep(std::vector<std::byte> values) {
    return kept_.emplace_back(std::make_unique<Memory>(case_.options.device, std::move(values)))->data();
  }
  void add_state(int32_t p, ParameterMemory& memory) {
    const Parameter& parameter = case_.problem.parameters[static_cast<size_t>(p)];
    const size_t elements = held_[static_cast<size_t>(p)].size();
    memory.momentum = keep(std::vector<std::byte>(elements * 4));
    if (parameter.algorithm == Algorithm::kAdamW) memory.second = keep(std::vector<std::byte>(elements * 4));
    if (parameter.algorithm != Algorithm::kNorMuon) return;
    const StatisticsLayout layout = statistics_layout(case_.problem, p, rank_);
    memory.statistics = keep(std::vector<std::byte>(static_cast<size_t>(element_count(layout.local_shape)) * 4));
  }

  const Case& case_;
  const int32_t rank_;
  std::vector<Indices> held_;
  std::vector<ParameterMemory> memory_;
  std::vector<std::unique_ptr<Memory>> kept_;
  size_t weights_ = 0;
};

}  // namespace

std::vector<std::byte> train(const Case& c, const Run& run, Communicator& communicator) {
  Rank rank(c, communicator.rank());
  rank.end_of_weights();
  Optimizer optimizer(c.problem, c.options, communicator, rank.memory());
  if (!run.load.empty()) optimizer.load(run.load);
  for (int step = run.first_step; step < run.last_step; ++step) {
    optimizer.group(0).lr = 0.02 / (1 + step);
    optimizer.step(rank.gradients(step), c.step);
    optimizer.synchronize();
    if (!run.save.empty() && step + 1 == run.save_after) optimizer.save(run.save);
  }
  rank.drop_gradients();
  std::vector<std::byte> out = rank.bytes();
  for (const StateInfo& info : optimizer.state()) {
    const StateTensor tensor = optimizer.export_state(info.name);
    for (const char letter : info.name) append(out, letter);
    out.insert(out.end(), tensor.data.begin(), tensor.data.end());
  }
  return out;
}
