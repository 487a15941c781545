// What the chaos and the soak suite train: every algorithm and form of weights, cut over ranks in several ways, on
// gradients that depend on parameter, element and step alone. So the state after a step is the same, to the bit,
// however often training was interrupted and on however many ranks it went on.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/hash.h"
#include "engine/checkpoint/checkpoint_index.h"
#include "muster/optimizer.h"
#include "support/device_copies.h"
#include "support/training.h"

namespace muster::chaos {

inline constexpr int kCuts = 4;

// `cut` chooses how parameters are cut over the ranks.
inline Problem make_problem(int32_t ranks, int64_t cut) {
  Problem problem;
  problem.model = "trainee";
  problem.ranks = ranks;
  problem.meshes = {{"world", {{"ranks", ranks}}, {}}};
  const auto add = [&](std::string name, Shape shape, Dtype dtype, Algorithm algorithm) {
    Parameter& p = problem.parameters.emplace_back();
    p.name = std::move(name);
    p.shape = std::move(shape);
    p.dtype = dtype;
    p.grad_dtype = dtype;
    p.algorithm = algorithm;
    const int64_t kind = (cut + std::ssize(problem.parameters)) % kCuts;
    Placement placement = Placement::shard(0);
    if (kind == 1 && p.shape.size() > 1) placement = Placement::shard(1);
    if (kind == 2) placement = Placement::flat();
    if (kind == 3) placement = Placement::replicate();
    p.layout = {0, {placement}, {}};
  };
  for (int layer = 0; layer < 3; ++layer) {
    add("blocks." + std::to_string(layer) + ".qkv", {48, 20}, Dtype::kBf16, Algorithm::kNorMuon);
    problem.parameters.back().matrices.rows = {{16, {}, {}}, {16, {}, NormAxis::kRows}, {16, false, {}}};
    add("blocks." + std::to_string(layer) + ".mlp", {33, 26}, Dtype::kF32, Algorithm::kMuon);
  }
  add("embed", {37, 11}, Dtype::kBf16, Algorithm::kAdamW);
  add("gain", {23}, Dtype::kF32, Algorithm::kLion);
  return problem;
}

// One rank's memory, optimizer and gradients.
class Trainee {
 public:
  Trainee(Problem problem, OptimizerOptions options, Communicator& communicator)
      : problem_(std::move(problem)), options_(std::move(options)), copies_(options_.device) {
    elements_ = test::held_elements(problem_, communicator.rank());
    for (size_t p = 0; p < problem_.parameters.size(); ++p) {
      constexpr WeightForm kForms[] = {WeightForm::kBf16Master, WeightForm::kBf16Mantissa, WeightForm::kBf16Stochastic,
                                       WeightForm::kBf16};
      const bool f32 = problem_.parameters[p].dtype == Dtype::kF32;
      const WeightForm form = f32 ? WeightForm::kF32 : kForms[p / 2 % 4];
      weights_.push_back(filled(p, 1));
      extras_.emplace_back(form == WeightForm::kBf16Mantissa ? 2 * elements_[p].size() : 0);
      if (form == WeightForm::kBf16Master) {
        for (const int64_t element : elements_[p]) {
          extras_[p].resize(extras_[p].size() + 4);
          test::store(Dtype::kF32, test::made_up(p, element, 1), extras_[p].data() + extras_[p].size() - 4);
        }
      }
      gradients_.push_back(filled(p, 0));
      // On the CPU the vectors themselves: their elements stay where they are.
      memory_.push_back({copies_.upload(weights_[p]), copies_.upload(extras_[p]), form,
                         static_cast<int32_t>(p % options_.groups.size())});
      on_device_.push_back(copies_.upload(gradients_[p]));
    }
    optimizer_ = std::make_unique<Optimizer>(problem_, options_, communicator, memory_);
  }

  Optimizer& optimizer() { return *optimizer_; }
  const Problem& problem() const { return problem_; }

  // Makes step optimizer().steps(), counted from 0. `missing` is the number of a parameter without gradient; -1: none.
  void step(bool overlap, int64_t missing = -1, const StepOptions& options = {}) {
    const auto salt = static_cast<uint64_t>(100 + optimizer_->steps());
    if (options_.device.kind != Device::Kind::kCpu) optimizer_->synchronize();
    std::vector<void*> pointers;
    for (size_t p = 0; p < gradients_.size(); ++p) {
      fill(p, salt, gradients_[p]);
      copies_.upload(gradients_[p], on_device_[p]);
      pointers.push_back(static_cast<int64_t>(p) == missing ? nullptr : on_device_[p]);
    }
    if (overlap) {
      optimizer_->begin_step(options);
      for (size_t p = pointers.size(); p-- > 0;) {
        if (pointers[p] != nullptr) optimizer_->ready(static_cast<int32_t>(p), pointers[p]);
      }
    }
    optimizer_->step(pointers, options);
    optimizer_->synchronize();
  }

  // A fingerprint of all weights and state, whole. Collective.
  uint64_t hash() {
    base::Hash hash;
    for (const StateInfo& info : optimizer_->state()) {
      hash.add(std::string_view(info.name));
      hash.add(std::span<const std::byte>(optimizer_->export_state(info.name).data));
    }
    return hash.value();
  }

 private:
  std::vector<std::byte> filled(size_t p, uint64_t salt) const {
    std::vector<std::byte> out(elements_[p].size() * static_cast<size_t>(byte_size(problem_.parameters[p].dtype)));
    fill(p, salt, out);
    return out;
  }
  void fill(size_t p, uint64_t salt, std::vector<std::byte>& out) const {
    const Dtype dtype = problem_.parameters[p].dtype;
    const auto width = static_cast<size_t>(byte_size(dtype));
    for (size_t i = 0; i < elements_[p].size(); ++i) {
      test::store(dtype, test::made_up(p, elements_[p][i], salt), out.data() + i * width);
    }
  }

  Problem problem_;
  OptimizerOptions options_;
  test::DeviceCopies copies_;
  std::vector<std::vector<int64_t>> elements_;
  std::vector<std::vector<std::byte>> weights_;
  std::vector<std::vector<std::byte>> extras_;
  std::vector<std::vector<std::byte>> gradients_;
  std::vector<void*> on_device_;
  std::vector<ParameterMemory> memory_;
  std::unique_ptr<Optimizer> optimizer_;
};

inline bool has_checkpoint(const std::string& directory) {
  return std::filesystem::exists(std::filesystem::path(directory) / engine::kIndexName);
}

}  // namespace muster::chaos
