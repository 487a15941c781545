// Steps of a small model on a LaunchQueue: captured and replayed ones must do what steps do that are carried out call
// by call.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cuda/elementwise/elementwise.h"
#include "kernels/cuda/runtime/launch_queue.h"
#include "twin.h"

namespace muster::kernels::cuda {
inline constexpr size_t kElements = 10000;

// Two matrices, each on its own lane, with a momentum and an apply kernel per step.
struct Model {
  struct Matrix {
    Matrix(unsigned seed)
        : momentum(random_bytes(Dtype::kF32, kElements, seed)),
          update(kElements * 2),
          weight(random_bytes(Dtype::kF32, kElements, seed + 1)) {}
    bool operator==(const Matrix& other) const {
      return momentum.values() == other.momentum.values() && update.values() == other.update.values() &&
             weight.values() == other.weight.values();
    }
    DeviceVector<std::byte> momentum;
    DeviceVector<std::byte> update;
    DeviceVector<std::byte> weight;
  };

  struct Step {
    const std::byte* gradients[2];
    double mu = 0.9;
    double lr = 0.1;
    size_t blocks = 4;         // per matrix
    bool memoize = false;      // each matrix's calls
    int before = 0;            // numbers in the table before those of the matrices
    bool memoize_all = false;  // both matrices' calls, and those after them
  };

  void enqueue(const Step& step, LaunchQueue& queue) {
    for (int i = 0; i < step.before; ++i) queue.upload(i);
    if (!step.memoize_all) return enqueue_matrices(step, queue);
    const int64_t inputs[] = {address(step.gradients[0]), address(step.gradients[1]), std::bit_cast<int64_t>(step.mu),
                              std::bit_cast<int64_t>(step.lr), static_cast<int64_t>(step.blocks)};
    const int before = made;
    const bool called = queue.memoize(inputs, {}, [&] { enqueue_matrices(step, queue); });
    EXPECT_EQ(called, made > before);
    EXPECT_EQ(queue.memoize<int>(std::span<const int64_t>(inputs, 1),
                                 [&] {
                                   ++after;
                                   queue.upload(step.lr);
                                   return 9;
                                 }),
              9);
  }

  void enqueue_matrices(const Step& step, LaunchQueue& queue) {
    for (int i = 0; i < 2; ++i) {
      queue.lane(i);
      if (!step.memoize) {
        enqueue(step, i, queue);
        continue;
      }
      const int64_t inputs[] = {address(step.gradients[i]), std::bit_cast<int64_t>(step.mu),
                                std::bit_cast<int64_t>(step.lr), static_cast<int64_t>(step.blocks)};
      EXPECT_EQ(queue.memoize<int>(inputs, [&] { return enqueue(step, i, queue); }), 7 + i);
    }
    queue.join_lanes();
  }

  int enqueue(const Step& step, int i, LaunchQueue& queue) {
    ++made;
    std::vector<MomentumBlock> momenta;
    std::vector<ApplyBlock> applies;
    for (size_t b = 0; b < step.blocks; ++b) {
      const size_t begin = kElements * b / step.blocks;
      const auto count = static_cast<int64_t>(kElements * (b + 1) / step.blocks - begin);
      std::byte* const update = matrices[i].update.data() + 2 * begin;
      momenta.push_back({1, count, step.gradients[i] + 4 * begin, count, matrices[i].momentum.data() + 4 * begin, count,
                         update, count});
      ApplyBlock& apply = applies.emplace_back();
      apply.rows = 1;
      apply.columns = count;
      apply.update = update;
      apply.update_stride = count;
      apply.weight.data = matrices[i].weight.data() + 4 * begin;
      apply.weight.stride = count;
      apply.scale = step.lr;
    }
    const Rates* const rates = queue.upload(Rates{.momentum = step.mu});
    MomentumOptions options;
    options.rates = rates;
    momentum_pack(options, momenta, queue);
    ApplyOptions apply_options;
    apply_options.rates = rates;
    cuda::apply(apply_options, applies, queue);
    return 7 + i;
  }

  bool operator==(const Model& other) const {
    return matrices[0] == other.matrices[0] && matrices[1] == other.matrices[1];
  }

  Matrix matrices[2]{1, 10};
  int made = 0;   // how often a matrix's calls were made
  int after = 0;  // how often those after the matrices were
};

// Returns the number of passes.
inline int make_step(Model& model, const Model::Step& step, bool capture, LaunchQueue& queue) {
  int passes = 0;
  do {
    queue.begin_step(capture);
    model.enqueue(step, queue);
    ++passes;
  } while (!queue.end_step());
  return passes;
}

class LaunchQueueSteps : public QueueTest {
 protected:
  void SetUp() override {
    QueueTest::SetUp();
    if (IsSkipped()) return;
    for (unsigned i = 0; i < 4; ++i) {
      gradients_.push_back(std::make_unique<DeviceVector<std::byte>>(random_bytes(Dtype::kF32, kElements, 20 + i)));
    }
    captured_ = std::make_unique<Model>();
    expected_ = std::make_unique<Model>();
    eager_ = std::make_unique<LaunchQueue>(nullptr);
  }

  const std::byte* gradient(size_t i) { return gradients_[i]->data(); }

  // Makes the step on both models, expects equal results, and returns the passes of the captured one.
  int step_both(const Model::Step& step) {
    LaunchQueue& queue = this->queue();
    const int passes = make_step(*captured_, step, true, queue);
    make_step(*expected_, step, false, *eager_);
    queue.synchronize();
    eager_->synchronize();
    EXPECT_TRUE(*captured_ == *expected_);
    return passes;
  }

  std::unique_ptr<Model> captured_;
  std::unique_ptr<Model> expected_;
  std::unique_ptr<LaunchQueue> eager_;

 private:
  std::vector<std::unique_ptr<DeviceVector<std::byte>>> gradients_;
};

}  // namespace muster::kernels::cuda
