// A step that is recorded and replayed does what it does when carried out call by call.
#include "kernels/cuda/runtime/queue.h"

#include <bit>

#include <gtest/gtest.h>

#include "kernels/cuda/elementwise/elementwise.h"
#include "twin.h"

namespace muster::kernels::cuda {
namespace {

constexpr size_t kElements = 10000;

// Two matrices, each on its own lane, and what a step does to them.
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
    size_t blocks = 4;  // that each matrix is cut into
    bool once = false;  // a matrix' calls are made for what is above alone
    int before = 0;     // numbers in the table before those of matrices
    bool all = false;   // and so are those of both, and of a number after them
  };

  void enqueue(const Step& step, Queue& queue) {
    for (int i = 0; i < step.before; ++i) queue.put(i);
    if (!step.all) return enqueue_matrices(step, queue);
    const int64_t inputs[] = {address(step.gradients[0]), address(step.gradients[1]), std::bit_cast<int64_t>(step.mu),
                              std::bit_cast<int64_t>(step.lr), static_cast<int64_t>(step.blocks)};
    const int before = made;
    const bool called = queue.once(inputs, {}, [&] { enqueue_matrices(step, queue); });
    EXPECT_EQ(called, made > before);
    EXPECT_EQ(queue.once<int>(std::span<const int64_t>(inputs, 1),
                              [&] {
                                ++after;
                                queue.put(step.lr);
                                return 9;
                              }),
              9);
  }

  void enqueue_matrices(const Step& step, Queue& queue) {
    for (int i = 0; i < 2; ++i) {
      queue.lane(i);
      if (!step.once) {
        enqueue(step, i, queue);
        continue;
      }
      const int64_t inputs[] = {address(step.gradients[i]), std::bit_cast<int64_t>(step.mu),
                                std::bit_cast<int64_t>(step.lr), static_cast<int64_t>(step.blocks)};
      EXPECT_EQ(queue.once<int>(inputs, [&] { return enqueue(step, i, queue); }), 7 + i);
    }
    queue.join_lanes();
  }

  int enqueue(const Step& step, int i, Queue& queue) {
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
    const Rates* const rates = queue.put(Rates{.momentum = step.mu});
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
  int made = 0;   // calls of a matrix
  int after = 0;  // and after them
};

// How often the calls of the step were made.
int make_step(Model& model, const Model::Step& step, bool record, Queue& queue) {
  int passes = 0;
  do {
    queue.begin_step(record);
    model.enqueue(step, queue);
    ++passes;
  } while (!queue.end_step());
  return passes;
}

class QueueSteps : public QueueTest {
 protected:
  void SetUp() override {
    QueueTest::SetUp();
    if (IsSkipped()) return;
    for (unsigned i = 0; i < 4; ++i) {
      gradients_.push_back(std::make_unique<DeviceVector<std::byte>>(random_bytes(Dtype::kF32, kElements, 20 + i)));
    }
    recorded_ = std::make_unique<Model>();
    expected_ = std::make_unique<Model>();
    eager_ = std::make_unique<Queue>(nullptr);
  }

  const std::byte* gradient(size_t i) { return gradients_[i]->data(); }

  // Passes of the recorded model; both have made the step.
  int step_both(const Model::Step& step) {
    Queue& queue = this->queue();
    const int passes = make_step(*recorded_, step, true, queue);
    make_step(*expected_, step, false, *eager_);
    queue.synchronize();
    eager_->synchronize();
    EXPECT_TRUE(*recorded_ == *expected_);
    return passes;
  }

  std::unique_ptr<Model> recorded_;
  std::unique_ptr<Model> expected_;
  std::unique_ptr<Queue> eager_;

 private:
  std::vector<std::unique_ptr<DeviceVector<std::byte>>> gradients_;
};

TEST_F(QueueSteps, ReplaysWithMovedGradientsAndOtherNumbers) {
  EXPECT_EQ(step_both({{gradient(0), gradient(1)}}), 2);  // probed, then carried out
  EXPECT_EQ(queue().graphs(), 0);
  EXPECT_EQ(step_both({{gradient(2), gradient(3)}, 0.8}), 2);  // probed, then captured
  EXPECT_EQ(queue().graphs(), 1);
  EXPECT_EQ(step_both({{gradient(3), gradient(0)}, 0.8, 0.01}), 1);  // replayed
  EXPECT_EQ(step_both({{gradient(1), gradient(2)}, 0.7, 0.02}), 1);
  EXPECT_EQ(queue().graphs(), 1);
}

TEST_F(QueueSteps, AnotherCountIsAnotherGraph) {
  const Model::Step four{{gradient(0), gradient(1)}};
  Model::Step five = four;
  five.blocks = 5;
  for (const int passes : {2, 2, 1}) EXPECT_EQ(step_both(four), passes);
  for (const int passes : {2, 2, 1}) EXPECT_EQ(step_both(five), passes);
  EXPECT_EQ(queue().graphs(), 2);
  EXPECT_EQ(step_both(four), 1);  // the first is still there
}

TEST_F(QueueSteps, AProbeDoesNotMakeCallsOfTheSameInputsAgain) {
  Model::Step step{{gradient(0), gradient(1)}};
  step.once = true;
  // The calls that were made in a step with so many passes.
  const auto calls_of_step = [&](int passes) {
    const int before = recorded_->made;
    EXPECT_EQ(step_both(step), passes);
    return recorded_->made - before;
  };
  EXPECT_EQ(calls_of_step(2), 4);  // probed, carried out
  EXPECT_EQ(calls_of_step(2), 2);  // captured
  EXPECT_EQ(calls_of_step(1), 0);
  const int64_t launches = queue().launches();
  step.lr = 0.2;
  EXPECT_EQ(calls_of_step(1), 2);
  step.gradients[1] = gradient(2);
  EXPECT_EQ(calls_of_step(1), 1);
  EXPECT_EQ(calls_of_step(1), 0);
  EXPECT_EQ(queue().launches(), launches);
  step.before = 1;  // all is elsewhere, and another graph
  EXPECT_EQ(calls_of_step(2), 4);
  EXPECT_EQ(calls_of_step(2), 2);
  EXPECT_EQ(calls_of_step(1), 0);
  EXPECT_EQ(queue().graphs(), 2);
}

TEST_F(QueueSteps, AProbeKnowsCallsWithinOthers) {
  Model::Step step{{gradient(0), gradient(1)}};
  step.once = step.all = true;
  const auto calls_of_step = [&](int passes) {
    const int made = std::exchange(recorded_->made, 0);
    const int after = std::exchange(recorded_->after, 0);
    EXPECT_EQ(step_both(step), passes);
    const std::pair calls{recorded_->made, recorded_->after};
    recorded_->made += made;
    recorded_->after += after;
    return calls;
  };
  EXPECT_EQ(calls_of_step(2), std::pair(4, 2));
  EXPECT_EQ(calls_of_step(2), std::pair(2, 1));
  EXPECT_EQ(calls_of_step(1), std::pair(0, 0));
  step.gradients[1] = gradient(2);  // not what comes first, nor what comes after
  EXPECT_EQ(calls_of_step(1), std::pair(1, 0));
  EXPECT_EQ(calls_of_step(1), std::pair(0, 0));
  step.gradients[0] = gradient(3);
  EXPECT_EQ(calls_of_step(1), std::pair(1, 1));
  EXPECT_EQ(calls_of_step(1), std::pair(0, 0));
  step.blocks = 5;
  EXPECT_EQ(calls_of_step(2), std::pair(4, 2));
  EXPECT_EQ(calls_of_step(2), std::pair(2, 1));
  EXPECT_EQ(calls_of_step(1), std::pair(0, 0));
}

TEST_F(QueueSteps, StepsThatAreNotRecordedAreCarriedOut) {
  const Model::Step step{{gradient(0), gradient(1)}};
  for (int i = 0; i < 3; ++i) {
    make_step(*recorded_, step, false, queue());
    make_step(*expected_, step, false, *eager_);
  }
  queue().synchronize();
  eager_->synchronize();
  EXPECT_TRUE(*recorded_ == *expected_);
  EXPECT_EQ(queue().graphs(), 0);
}

TEST_F(QueueSteps, ForgettingRecordsAnew) {
  const Model::Step step{{gradient(0), gradient(1)}};
  for (int i = 0; i < 3; ++i) step_both(step);
  EXPECT_EQ(queue().graphs(), 1);
  queue().forget();
  EXPECT_EQ(queue().graphs(), 0);
  for (int i = 0; i < 3; ++i) step_both(step);
  EXPECT_EQ(queue().graphs(), 1);
}

// As when an exchange throws between a lane's begin and its end.
TEST_F(QueueSteps, AStepThatBrokeOffIsNotGoneOnWith) {
  const Model::Step step{{gradient(0), gradient(1)}};
  for (int i = 0; i < 3; ++i) step_both(step);
  const int64_t last = queue().step();
  queue().begin_step(false);
  ASSERT_FALSE(queue().end_step());  // it was probed
  queue().begin_step(false);
  queue().lane(1);
  queue().forget();
  EXPECT_EQ(queue().stream(), queue().main());
  for (const int passes : {2, 2, 1}) EXPECT_EQ(step_both(step), passes);
  EXPECT_EQ(queue().step(), last + 4);
}

// A table has room for a megabyte at first; 5000 blocks a matrix take two.
TEST_F(QueueSteps, ATableThatIsTooSmallGrows) {
  const Model::Step small{{gradient(0), gradient(1)}};
  Model::Step large = small;
  large.blocks = 5000;
  for (int i = 0; i < 3; ++i) step_both(small);
  for (int i = 0; i < 3; ++i) step_both(large);
  EXPECT_EQ(step_both(large), 1);
  step_both(small);
}

// Nobody has measured it before: the table grows in the middle of it.
TEST_F(QueueSteps, AStepInPartsIsCarriedOutAsItComes) {
  Model::Step step{{gradient(0), gradient(1)}};
  for (const size_t blocks : {4, 3000, 5000, 5000, 4}) {
    queue().begin_parts();
    for (size_t part = 0; part < 3; ++part) {
      step = {{gradient(part), gradient(part + 1)}, 0.9, 0.1, blocks};
      queue().wait_for_caller();
      recorded_->enqueue(step, queue());
      make_step(*expected_, step, false, *eager_);
    }
    EXPECT_TRUE(queue().end_step());
    EXPECT_FALSE(queue().replayed());
    queue().synchronize();
    eager_->synchronize();
    EXPECT_TRUE(*recorded_ == *expected_) << blocks;
  }
  EXPECT_EQ(queue().graphs(), 0);
}

// Without waiting for any of them.
TEST_F(QueueSteps, ManyStepsMayBeUnderWay) {
  Queue& queue = this->queue();
  for (size_t i = 0; i < 50; ++i) {
    const Model::Step step{{gradient(i % 4), gradient((i + 1) % 4)}, 0.5 + 0.01 * static_cast<double>(i)};
    make_step(*recorded_, step, true, queue);
    make_step(*expected_, step, false, *eager_);
  }
  queue.synchronize();
  eager_->synchronize();
  EXPECT_TRUE(*recorded_ == *expected_);
  EXPECT_TRUE(queue.done(50));
}

// While others are under way, whichever way they are carried out.
TEST_F(QueueSteps, WhatIsSentIsOfItsOwnStep) {
  Queue own;  // without a caller's stream
  for (Queue* const queue : {&this->queue(), &own}) {
    constexpr size_t kWords = 300;
    const DeviceVector<int64_t> words(kWords);
    check(cudaDeviceSynchronize(), "before the test");
    const auto number_of = [](int64_t step) { return 1000 + step * step; };
    const auto expect_sent = [&](int64_t step) {
      while (!queue->done(step)) {
      }
      const std::span<const std::byte> sent = queue->sent(step);
      ASSERT_EQ(sent.size(), kWords * sizeof(int64_t));
      std::vector<int64_t> values(kWords);
      std::memcpy(values.data(), sent.data(), sent.size());
      EXPECT_EQ(values, std::vector<int64_t>(kWords, number_of(step))) << step;
    };
    int64_t replayed = 0;
    for (int64_t step = 1; step <= 20; ++step) {
      const std::vector<int64_t> values(kWords, number_of(step));
      do {
        queue->begin_step(step % 5 != 0);
        const int64_t* const from = queue->put(std::span<const int64_t>(values));
        queue->launch("copy", {address(words.data())}, [&](cudaStream_t stream) {
          check(cudaMemcpyAsync(words.data(), from, kWords * sizeof(int64_t), cudaMemcpyDeviceToDevice, stream),
                "copy");
        });
        queue->send(words.data(), static_cast<int64_t>(kWords * sizeof(int64_t)));
      } while (!queue->end_step());
      replayed += queue->replayed() ? 1 : 0;
      if (step == 13) queue->forget();
      if (step > 1) expect_sent(step - 1);
    }
    expect_sent(20);
    EXPECT_EQ(replayed, 12);
  }
}

TEST_F(QueueSteps, KeepTheirOrderWhenTheCallersStreamChanges) {
  cudaStream_t streams[2];
  for (cudaStream_t& stream : streams) check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  const Model::Step step{{gradient(0), gradient(1)}};
  {
    check(cudaDeviceSynchronize(), "before the test");
    Queue queue(streams[0]);
    for (size_t i = 0; i < 20; ++i) {
      queue.follow(streams[i / 2 % 2]);
      make_step(*recorded_, step, true, queue);
      make_step(*expected_, step, false, *eager_);
    }
    queue.synchronize();
    eager_->synchronize();
    EXPECT_TRUE(*recorded_ == *expected_);
    EXPECT_TRUE(queue.replayed());
  }
  for (const cudaStream_t stream : streams) cudaStreamDestroy(stream);
}

// Calls between steps wait for room in the table, and steps for them.
TEST_F(QueueSteps, CallsBetweenStepsKeepTheirOrder) {
  Queue& queue = this->queue();
  const Model::Step step{{gradient(0), gradient(1)}};
  for (int i = 0; i < 5; ++i) {
    make_step(*recorded_, step, true, queue);
    make_step(*expected_, step, false, *eager_);
    recorded_->enqueue(step, queue);
    expected_->enqueue(step, *eager_);
  }
  queue.synchronize();
  eager_->synchronize();
  EXPECT_TRUE(*recorded_ == *expected_);
}

}  // namespace
}  // namespace muster::kernels::cuda
