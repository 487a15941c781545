#include "kernels/cpu/normuon.h"

#include <cmath>

#include <gtest/gtest.h>

#include "kernel_support.h"

namespace muster::kernels {
namespace {

const std::vector<MatrixShape> kShapes{{1, 1}, {1, 12}, {6, 12}, {12, 1}, {64, 17}, {65, 129}, {130, 127}, {3, 300}};

TEST(NorMuon, AgreesWithTheReferenceOverSteps) {
  CpuParts kernels(2);
  for (const MatrixShape shape : kShapes) {
    for (const LineAxis axis : {LineAxis::kRows, LineAxis::kColumns}) {
      const int64_t lines = axis == LineAxis::kRows ? shape.rows : shape.columns;
      std::vector<float> variance(static_cast<size_t>(lines));
      reference::NorMuonOptions expected_options;
      expected_options.axis = axis == LineAxis::kRows ? reference::Axis::kRows : reference::Axis::kColumns;
      reference::Vector expected_variance;
      Scratch scratch(cpu::normuon_matrix_bytes(shape));
      for (uint32_t step = 0; step < 3; ++step) {
        const std::vector<float> o = random_values(shape.rows * shape.columns, step, 0.03f);
        std::vector<float> output(o.size());
        const cpu::NorMuonMatrix matrix{o.data(), variance.data(), output.data()};
        kernels.normuon({.options = {.axis = axis},
                         .wire = Dtype::kF32,
                         .shape = shape,
                         .matrices = std::span(&matrix, 1),
                         .workspace = scratch.get()});
        const auto expected =
            reference::normuon(expected_options, {shape.rows, shape.columns, to_double(o)}, expected_variance);
        // V, the factor and the product are each rounded to f32: 2^-24 of the value three times.
        for (size_t i = 0; i < o.size(); ++i) {
          ASSERT_NEAR(output[i], expected.data[i], 4e-7 * std::abs(expected.data[i])) << name_of(shape);
        }
        for (size_t i = 0; i < variance.size(); ++i) {
          ASSERT_NEAR(variance[i], expected_variance[i], 4e-7 * expected_variance[i]);
        }
      }
    }
  }
}

TEST(NorMuon, GivesTheSameBitsInEveryBatchOnEveryThreadCount) {
  for (const MatrixShape shape : kShapes) {
    for (const LineAxis axis : {LineAxis::kRows, LineAxis::kColumns}) {
      const size_t size = static_cast<size_t>(shape.rows * shape.columns);
      const size_t lines = static_cast<size_t>(axis == LineAxis::kRows ? shape.rows : shape.columns);
      std::vector<std::vector<uint16_t>> expected;
      std::vector<std::vector<float>> expected_variance;
      for (const cpu::Elementwise* set : all_elementwise()) {
        for (const int threads : {1, 2, 3}) {
          CpuParts kernels(threads, *set);
          for (const size_t batch : {1, 4}) {
            std::vector<std::vector<float>> o;
            std::vector<std::vector<float>> variance;
            std::vector<std::vector<uint16_t>> outputs(batch, std::vector<uint16_t>(size));
            std::vector<cpu::NorMuonMatrix> matrices;
            for (uint32_t m = 0; m < batch; ++m) {
              o.push_back(random_values(shape.rows * shape.columns, m));
              variance.emplace_back(lines, 0.5f);
            }
            for (size_t m = 0; m < batch; ++m) {
              matrices.push_back({o[m].data(), variance[m].data(), outputs[m].data()});
            }
            Scratch scratch(static_cast<int64_t>(batch) * cpu::normuon_matrix_bytes(shape));
            kernels.normuon(
                {.options = {.axis = axis}, .shape = shape, .matrices = matrices, .workspace = scratch.get()});
            for (size_t m = 0; m < batch; ++m) {
              if (expected.size() <= m) {
                expected.push_back(outputs[m]);
                expected_variance.push_back(variance[m]);
              }
              ASSERT_EQ(outputs[m], expected[m]) << name_of(shape) << " " << set->name << " " << threads;
              ASSERT_EQ(variance[m], expected_variance[m]);
            }
          }
        }
      }
    }
  }
}

TEST(NorMuon, KeepsTheNormAndLeavesZeroAlone) {
  CpuParts kernels;
  const MatrixShape shape{20, 30};
  Scratch scratch(cpu::normuon_matrix_bytes(shape));
  std::vector<float> values = random_values(600, 1);
  const auto norm = [](const std::vector<float>& v) {
    return reference::frobenius_norm({1, static_cast<int64_t>(v.size()), to_double(v)});
  };
  const double before = norm(values);
  std::vector<float> variance(20);
  const cpu::NorMuonMatrix matrix{values.data(), variance.data(), values.data()};  // in place
  const cpu::NorMuonBatch batch{
      .wire = Dtype::kF32, .shape = shape, .matrices = std::span(&matrix, 1), .workspace = scratch.get()};
  kernels.normuon(batch);
  EXPECT_NEAR(norm(values) / before, 1, 1e-6);

  std::fill(values.begin(), values.end(), 0.0f);
  std::fill(variance.begin(), variance.end(), 0.0f);
  kernels.normuon(batch);
  EXPECT_EQ(values, std::vector<float>(600));
  EXPECT_EQ(variance, std::vector<float>(20));
}

TEST(NorMuon, TheLongerSideHasOneVarianceALineAndATieIsRows) {
  EXPECT_EQ(line_axis(NormAxis::kLonger, 4, 4), LineAxis::kRows);
  EXPECT_EQ(line_axis(NormAxis::kLonger, 4, 5), LineAxis::kColumns);
  EXPECT_EQ(line_axis(NormAxis::kLonger, 5, 4), LineAxis::kRows);
  EXPECT_EQ(line_axis(NormAxis::kColumns, 5, 4), LineAxis::kColumns);
  EXPECT_EQ(line_axis(NormAxis::kRows, 4, 5), LineAxis::kRows);
}

}  // namespace
}  // namespace muster::kernels
