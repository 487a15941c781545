#include "kernels/cuda/newton_schulz/normuon.h"

#include <cmath>

#include <gtest/gtest.h>

#include "orthogonalizing.h"
#include "reference/reference.h"

namespace muster::kernels::cuda {
namespace {

using NorMuonOnDevice = OrthogonalizeTest;

// A batch with its variances and flags, which go through steps.
class Steps {
 public:
  Steps(const OrthogonalizeOptions& options, MatrixShape shape, size_t count, Place place)
      : options_(options),
        shape_(shape),
        count_(count),
        batch_(options.wire, place, std::vector<Values>(count, random_matrix(shape, 0))),
        variances_(Values(count * lines())),
        active_(std::vector<int32_t>(count, 1)),
        bytes_(orthogonalizer_.workspace(shape, static_cast<int64_t>(count), options)),
        workspace_(static_cast<size_t>(bytes_)) {
    for (size_t m = 0; m < count; ++m) {
      matrices_.push_back({batch_.at(m), variances_.data() + m * lines(), active_.data() + m});
    }
  }

  size_t lines() const {
    return static_cast<size_t>(options_.normuon->axis == LineAxis::kRows ? shape_.rows : shape_.columns);
  }

  void set_active(const std::vector<int32_t>& active) {
    check(cudaMemcpy(active_.data(), active.data(), count_ * 4, cudaMemcpyHostToDevice), "write");
  }
  void set_beta2(double beta2) { options_.normuon->beta2 = beta2; }

  // Runs within a step that may be captured, or outside of steps.
  void run(const std::vector<Values>& inputs, bool recorded) {
    batch_.write(inputs);
    settle();
    do {
      if (recorded) queue_.begin_step(true);
      queue_.lane(1);
      orthogonalizer_.run({options_, shape_, matrices_, {workspace_.data(), bytes_}}, queue_);
      queue_.join_lanes();
    } while (recorded && !queue_.end_step());
    queue_.synchronize();
  }

  Values matrix(size_t m) const { return batch_.read(m); }
  Values variance(size_t m) const {
    const Values all = variances_.values();
    return {all.begin() + static_cast<int64_t>(m * lines()), all.begin() + static_cast<int64_t>((m + 1) * lines())};
  }
  int64_t graphs() const { return queue_.graphs(); }

 private:
  OrthogonalizeOptions options_;
  MatrixShape shape_;
  size_t count_;
  LaunchQueue queue_{nullptr};
  Orthogonalizer orthogonalizer_{0};
  OnDevice batch_;
  DeviceVector<float> variances_;
  DeviceVector<int32_t> active_;
  int64_t bytes_;
  DeviceVector<std::byte> workspace_;
  std::vector<UpdateMatrix> matrices_;
};

OrthogonalizeOptions options_of(LineAxis axis, Dtype wire) {
  OrthogonalizeOptions options;
  options.coefficients = coefficients("polar_express_safe");
  options.wire = wire;
  options.normuon = NorMuonOptions{axis, 0.9, 1e-8};
  return options;
}

std::vector<Values> random_batch(MatrixShape shape, size_t count, unsigned seed) {
  std::vector<Values> batch;
  for (unsigned m = 0; m < count; ++m) batch.push_back(random_matrix(shape, 100 * seed + m));
  return batch;
}

constexpr MatrixShape kShapes[] = {{128, 128}, {96, 384}, {384, 96}, {33, 257}, {70, 61}, {1, 40}, {520, 600}};

TEST_F(NorMuonOnDevice, IsTheReferenceOfWhatWasOrthogonalized) {
  for (const MatrixShape shape : kShapes) {
    for (const LineAxis axis : {LineAxis::kRows, LineAxis::kColumns}) {
      SCOPED_TRACE(std::to_string(shape.rows) + "x" + std::to_string(shape.columns) +
                   (axis == LineAxis::kRows ? " rows" : " columns"));
      const OrthogonalizeOptions options = options_of(axis, Dtype::kF32);
      OrthogonalizeOptions plain = options;
      plain.normuon.reset();
      Steps steps(options, shape, 2, Place::kEven);
      reference::NorMuonOptions reference_options;
      reference_options.axis = axis == LineAxis::kRows ? reference::Axis::kRows : reference::Axis::kColumns;
      reference_options.beta2 = options.normuon->beta2;
      reference_options.eps = options.normuon->eps;
      std::vector<reference::Vector> variances(2, reference::Vector(steps.lines()));
      for (unsigned step = 1; step <= 3; ++step) {
        const std::vector<Values> inputs = random_batch(shape, 2, step);
        const std::vector<Values> o = orthogonalized(plain, shape, inputs);  // f32 has the values of the 16 bits
        steps.run(inputs, false);
        for (size_t m = 0; m < 2; ++m) {
          const reference::Matrix exact = reference::normuon(
              reference_options, {shape.rows, shape.columns, reference::Vector(o[m].begin(), o[m].end())},
              variances[m]);
          // Sums of squares are in f32 within a part of a line.
          const Values got = steps.matrix(m);
          for (size_t i = 0; i < got.size(); ++i) {
            ASSERT_NEAR(got[i], exact.data[i], 3e-6 * std::abs(exact.data[i]) + 1e-9) << m << ": " << i;
          }
          const Values variance = steps.variance(m);
          for (size_t i = 0; i < variance.size(); ++i) {
            ASSERT_NEAR(variance[i], variances[m][i], 3e-6 * variances[m][i] + 1e-12) << m << ": " << i;
          }
        }
      }
    }
  }
}

TEST_F(NorMuonOnDevice, RoundsToTheWireOnce) {
  for (const MatrixShape shape : kShapes) {
    for (const LineAxis axis : {LineAxis::kRows, LineAxis::kColumns}) {
      Steps f32(options_of(axis, Dtype::kF32), shape, 1, Place::kEven);
      Steps bf16(options_of(axis, Dtype::kBf16), shape, 1, Place::kEven);
      f32.run({random_matrix(shape, 9)}, false);
      bf16.run({random_matrix(shape, 9)}, false);
      Values rounded = f32.matrix(0);
      for (float& value : rounded) value = to_bf16(value);
      EXPECT_EQ(bf16.matrix(0), rounded) << shape.rows << "x" << shape.columns;
      EXPECT_EQ(bf16.variance(0), f32.variance(0));
    }
  }
}

class NorMuonAs : public OrthogonalizeTest, public testing::WithParamInterface<MatrixShape> {};

TEST_P(NorMuonAs, GivesAMatrixTheSameBitsInAnyBatchPlaceAndRecording) {
  constexpr size_t kCount = 5;
  const MatrixShape shape = GetParam();
  for (const LineAxis axis : {LineAxis::kRows, LineAxis::kColumns}) {
    OrthogonalizeOptions options = options_of(axis, Dtype::kBf16);
    options.coefficients = one_iteration();
    Steps even(options, shape, kCount, Place::kEven);
    Steps uneven(options, shape, kCount, Place::kUneven);
    Steps odd(options, shape, kCount, Place::kOdd);
    Steps alone(options, shape, 1, Place::kEven);
    for (unsigned step = 1; step <= 5; ++step) {
      const std::vector<Values> inputs = random_batch(shape, kCount, step);
      for (Steps* steps : {&even, &uneven, &odd, &alone}) steps->set_beta2(0.9 + 0.01 * step);
      even.run(inputs, true);
      uneven.run(inputs, false);
      odd.run(inputs, true);
      alone.run({inputs[3]}, false);
      for (size_t m = 0; m < kCount; ++m) {
        EXPECT_EQ(uneven.matrix(m), even.matrix(m));
        EXPECT_EQ(odd.matrix(m), even.matrix(m));
        EXPECT_EQ(odd.variance(m), even.variance(m));
      }
      EXPECT_EQ(alone.matrix(0), even.matrix(3));
      EXPECT_EQ(alone.variance(0), even.variance(3));
    }
    EXPECT_EQ(even.graphs(), 1);
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, NorMuonAs, testing::ValuesIn(kShapes), shape_name);

TEST_F(NorMuonOnDevice, LeavesVariancesOfTheInactiveAlone) {
  const MatrixShape shape{96, 384};
  Steps steps(options_of(LineAxis::kColumns, Dtype::kBf16), shape, 3, Place::kEven);
  Steps all(options_of(LineAxis::kColumns, Dtype::kBf16), shape, 3, Place::kEven);
  steps.run(random_batch(shape, 3, 1), false);
  all.run(random_batch(shape, 3, 1), false);
  const Values before = steps.variance(1);
  std::vector<Values> inputs = random_batch(shape, 3, 2);
  all.run(inputs, false);
  for (float& value : inputs[1]) value = NAN;
  steps.set_active({1, 0, 1});
  steps.run(inputs, false);
  EXPECT_EQ(steps.variance(1), before);
  for (const size_t m : {size_t{0}, size_t{2}}) {
    EXPECT_EQ(steps.matrix(m), all.matrix(m));
    EXPECT_EQ(steps.variance(m), all.variance(m));
  }
}

TEST_F(NorMuonOnDevice, LeavesZeroAlone) {
  const MatrixShape shape{64, 72};
  Steps steps(options_of(LineAxis::kRows, Dtype::kBf16), shape, 1, Place::kEven);
  const Values zero(static_cast<size_t>(shape.rows * shape.columns));
  steps.run({zero}, false);
  EXPECT_EQ(steps.matrix(0), zero);
  EXPECT_EQ(steps.variance(0), Values(steps.lines()));
}

}  // namespace
}  // namespace muster::kernels::cuda
