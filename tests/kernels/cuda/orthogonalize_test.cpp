#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "kernels/cuda/newton_schulz/cuda_cublas.h"
#include "kernels/cuda/newton_schulz/newton_schulz.h"
#include "orthogonalizing.h"
#include "plan/catalog.h"
#include "plan/cost_model/cost_model.h"
#include "reference/reference.h"
#include "spectra.h"
#include "support/problems.h"
#include "support/reference_options.h"

namespace muster::kernels::cuda {
namespace {

using Orthogonalize = OrthogonalizeTest;

OrthogonalizeOptions with(std::string_view set, Dtype wire) {
  OrthogonalizeOptions options;
  options.coefficients = coefficients(set);
  options.wire = wire;
  return options;
}

reference::Matrix exactly(MatrixShape shape, const Values& values) {
  return {shape.rows, shape.columns, reference::Vector(values.begin(), values.end())};
}

reference::Matrix expected(const Coefficients& set, MatrixShape shape, const Values& input) {
  reference::NewtonSchulz options = test::reference_options(set);
  options.safety = half_safety(set);
  return reference::newton_schulz(exactly(shape, input), options);
}

// As a share of `exact`.
double distance(const reference::Matrix& ours, const reference::Matrix& exact) {
  double error = 0;
  for (size_t i = 0; i < ours.data.size(); ++i) error += std::pow(ours.data[i] - exact.data[i], 2);
  return std::sqrt(error) / reference::frobenius_norm(exact);
}

// Root mean square of O O^T - I (tall: O^T O - I), a row.
double orthogonality(const reference::Matrix& o) {
  const reference::Matrix gram = gram_of(o);
  double sum = 0;
  for (int64_t i = 0; i < gram.rows; ++i) {
    for (int64_t j = 0; j < gram.columns; ++j) sum += std::pow(gram.at(i, j) - (i == j ? 1 : 0), 2);
  }
  return std::sqrt(sum / static_cast<double>(gram.rows));
}

TEST_F(Orthogonalize, IsAsGoodAsTheReferenceForEveryShapeSetAndDtype) {
  for (const MatrixShape shape : {MatrixShape{96, 96},
                                  {256, 256},
                                  {130, 70},
                                  {70, 130},
                                  {200, 400},
                                  {384, 96},
                                  {1, 12},
                                  {12, 1},
                                  {1, 1000},
                                  {6, 12},
                                  {33, 257},
                                  {257, 33}}) {
    for (const std::string_view name : coefficient_names()) {
      const Values input = random_matrix(shape, 5);
      const reference::Matrix exact = expected(coefficients(name), shape, input);
      for (const Dtype wire : {Dtype::kF32, Dtype::kBf16}) {
        SCOPED_TRACE(std::string(name) + " " + std::to_string(shape.rows) + "x" + std::to_string(shape.columns) +
                     (wire == Dtype::kF32 ? " f32" : " bf16"));
        const reference::Matrix ours = exactly(shape, orthogonalized(with(name, wire), shape, {input})[0]);
        // The polynomials magnify rounding, cans most: its slope at 1 is 22. Steps in half precision leave a digit of
        // what float64 gets, and singular values as near to 1 as those of the set are anyway: within 0.13, of cans 0.2,
        // or where more, jordan's.
        EXPECT_LT(distance(ours, exact), 0.15);
        EXPECT_LT(orthogonality(ours), std::max(orthogonality(exact), name == "cans" ? 0.4 : 0.25) + 0.03);
      }
    }
  }
}

// The Gram form restarts after two steps, so that one step and two have one product with X. With so few steps a wrong
// scale shows.
TEST_F(Orthogonalize, IsAsGoodAsTheReferenceForAnyNumberOfSteps) {
  for (const MatrixShape shape : {MatrixShape{6, 6}, {6, 12}, {96, 96}, {96, 384}, {384, 96}}) {
    for (const auto rescale : {Coefficients::Rescale::kNone, Coefficients::Rescale::kGram}) {
      const Values input = random_matrix(shape, 5);
      OrthogonalizeOptions options = with("jordan", Dtype::kBf16);
      options.coefficients.rescale = rescale;
      options.coefficients.safety = 1.25;
      for (; !options.coefficients.steps.empty(); options.coefficients.steps.pop_back()) {
        SCOPED_TRACE(std::to_string(shape.rows) + "x" + std::to_string(shape.columns) +
                     ", steps: " + std::to_string(options.coefficients.steps.size()) +
                     (rescale == Coefficients::Rescale::kGram ? ", by the Gram norm" : ""));
        EXPECT_EQ(form_of(shape, options.coefficients), long_enough_for_gram(shape) ? Form::kGram : Form::kStandard);
        const reference::Matrix exact = expected(options.coefficients, shape, input);
        const reference::Matrix ours = exactly(shape, orthogonalized(options, shape, {input})[0]);
        EXPECT_LT(distance(ours, exact), 0.05);  // emulated: 0.002 to 0.032, and 0.06 or more if a scale is off
      }
    }
  }
}

// Rows that fall off to `smallest`, and none after `rank`.
Values decaying(MatrixShape shape, double smallest, int64_t rank) {
  Values values = random_matrix(shape, 11);
  for (int64_t i = 0; i < shape.rows; ++i) {
    const double scale = i < rank ? std::pow(smallest, static_cast<double>(i) / static_cast<double>(shape.rows)) : 0;
    for (int64_t j = 0; j < shape.columns; ++j) {
      float& value = values[static_cast<size_t>(i * shape.columns + j)];
      value = to_bf16(value * static_cast<float>(scale));
    }
  }
  return values;
}

class SpectraAs : public Orthogonalize, public testing::WithParamInterface<MatrixShape> {};

TEST_P(SpectraAs, LeaveSingularValuesBounded) {
  const MatrixShape shape = GetParam();
  for (const std::string_view name :
       {"jordan", "quintic", "polar_express", "polar_express_safe", "polar_express_tight", "capped3", "capped4"}) {
    for (const double smallest : {1.0, 1e-3, 1e-6, 1e-9}) {
      for (const int64_t rank : {int64_t{2}, int64_t{10}, shape.rows / 2, shape.rows}) {
        SCOPED_TRACE(std::string(name) + " down to " + std::to_string(smallest) + ", rank " + std::to_string(rank));
        const Values result = orthogonalized(with(name, Dtype::kBf16), shape, {decaying(shape, smallest, rank)})[0];
        EXPECT_LT(spectral_norm(exactly(shape, result)), 1.5);  // as in gram_rounding_test.cpp
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, SpectraAs,
                         testing::Values(MatrixShape{128, 128}, MatrixShape{96, 384}, MatrixShape{384, 96}),
                         shape_name);

TEST(Forms, GramIsForLongMatricesAndCoefficientsThatTolerateRounding) {
  EXPECT_EQ(form_of({768, 768}, coefficients("jordan")), Form::kStandard);
  for (const MatrixShape shape : {MatrixShape{768, 3072}, {3072, 768}}) {
    for (const char* name :
         {"jordan", "quintic", "polar_express", "polar_express_safe", "polar_express_tight", "capped3", "capped4"}) {
      EXPECT_EQ(form_of(shape, coefficients(name)), Form::kGram) << name;
    }
    for (const char* name : {"cans", "aol4"}) {
      EXPECT_EQ(form_of(shape, coefficients(name)), Form::kStandard) << name;
    }
  }
}

class OrthogonalizeAs : public Orthogonalize, public testing::WithParamInterface<MatrixShape> {};

TEST_P(OrthogonalizeAs, GivesAMatrixTheSameBitsInAnyBatchAndPlace) {
  const MatrixShape shape = GetParam();
  // More tiles than the device has room for at once, in GEMMs of X; of the smallest shape in all of them.
  const unsigned batch = shape.rows == 64 ? 150 : 70;
  for (const std::string_view name : {"polar_express_tight", "aol4", "capped3", "capped4"}) {
    for (const Dtype wire : {Dtype::kF32, Dtype::kBf16}) {
      SCOPED_TRACE(name);
      std::vector<Values> inputs;
      for (unsigned seed = 0; seed < batch; ++seed) inputs.push_back(random_matrix(shape, seed));
      const auto together = orthogonalized(with(name, wire), shape, inputs);
      EXPECT_EQ(orthogonalized(with(name, wire), shape, inputs, Place::kUneven), together);
      EXPECT_EQ(orthogonalized(with(name, wire), shape, inputs, Place::kOdd), together);
      for (const size_t i : {size_t{0}, size_t{64}, size_t{batch - 1}}) {
        EXPECT_EQ(orthogonalized(with(name, wire), shape, {inputs[i]})[0], together[i]);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, OrthogonalizeAs,
                         testing::Values(MatrixShape{256, 256}, MatrixShape{70, 130}, MatrixShape{96, 384},
                                         MatrixShape{384, 96}, MatrixShape{64, 136}),
                         shape_name);

// Matrices of a size for which two warpgroups share tiles.
TEST_F(Orthogonalize, GivesALargeMatrixTheSameBitsInAnyPlace) {
  const MatrixShape shape{2112, 2056};
  const std::vector<Values> inputs{random_matrix(shape, 1), random_matrix(shape, 2)};
  OrthogonalizeOptions options = with("capped3", Dtype::kBf16);
  for (const int sketch : {0, 96}) {
    options.coefficients = one_iteration();
    options.coefficients.rescale = Coefficients::Rescale::kGram;
    options.coefficients.sketch = sketch;
    const auto together = orthogonalized(options, shape, inputs);
    EXPECT_EQ(orthogonalized(options, shape, inputs, Place::kOdd), together);
    EXPECT_EQ(orthogonalized(options, shape, {inputs[1]})[0], together[1]);
  }
}

TEST_F(Orthogonalize, LeavesZeroAlone) {
  for (const MatrixShape shape : {MatrixShape{64, 64}, {32, 128}, {7, 9}, {128, 128}, {128, 512}}) {
    for (const Dtype wire : {Dtype::kF32, Dtype::kBf16}) {
      const Values zero(static_cast<size_t>(shape.rows * shape.columns));
      for (const char* set : {"polar_express_tight", "capped3", "capped4"}) {
        EXPECT_EQ(orthogonalized(with(set, wire), shape, {zero})[0], zero) << set;
      }
    }
  }
}

// An update of zeros would hide it.
TEST_F(Orthogonalize, PassesAnInfinityOn) {
  for (const auto gemms : {Orthogonalizer::Gemms::kBest, Orthogonalizer::Gemms::kCublas}) {
    if (gemms == Orthogonalizer::Gemms::kCublas && !Cublas::available()) continue;
    for (const MatrixShape shape : {MatrixShape{64, 64}, {32, 128}, {128, 128}, {512, 128}}) {
      Values input = random_matrix(shape, 3);
      for (const char* set : {"polar_express_tight", "capped3", "capped4"}) {
        for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
          input[7] = bad;
          const Values result = orthogonalized(with(set, Dtype::kBf16), shape, {input}, Place::kEven, gemms)[0];
          for (const float value : result) ASSERT_TRUE(std::isnan(value)) << set << " " << shape.rows;
        }
      }
    }
  }
}

TEST_F(Orthogonalize, DoesNotMindTheScale) {
  for (const MatrixShape shape : {MatrixShape{64, 64}, {32, 128}, {33, 47}, {136, 128}, {512, 128}}) {
    for (const Dtype wire : {Dtype::kF32, Dtype::kBf16}) {
      for (const char* set : {"polar_express_tight", "capped3", "capped4"}) {
        const Values input = random_matrix(shape, 3);
        const Values usual = orthogonalized(with(set, wire), shape, {input})[0];
        for (const int exponent : {-90, -40, -20, 20, 40, 90}) {
          Values scaled = input;
          for (float& value : scaled) value = std::ldexp(value, exponent);
          EXPECT_EQ(orthogonalized(with(set, wire), shape, {scaled})[0], usual) << set << " " << exponent;
        }
      }
    }
  }
}

TEST_F(Orthogonalize, MakesDoWithTheLeastWorkspace) {
  const MatrixShape shape{128, 384};
  const OrthogonalizeOptions options = with("capped3", Dtype::kBf16);
  std::vector<Values> inputs;
  for (unsigned seed = 0; seed < 5; ++seed) inputs.push_back(random_matrix(shape, seed));
  LaunchQueue queue(nullptr);
  Orthogonalizer orthogonalizer(0);
  const OnDevice batch(options.wire, Place::kEven, inputs);
  std::vector<UpdateMatrix> matrices;
  for (size_t m = 0; m < inputs.size(); ++m) matrices.push_back({batch.at(m), nullptr, nullptr});
  const int64_t bytes = orthogonalizer.workspace(shape, 1, options);
  const DeviceVector<std::byte> workspace(static_cast<size_t>(bytes));
  settle();
  EXPECT_THROW(orthogonalizer.run({options, shape, matrices, {workspace.data(), bytes - 1}}, queue), InvalidArgument);
  orthogonalizer.run({options, shape, matrices, {workspace.data(), bytes}}, queue);
  queue.synchronize();
  const auto together = orthogonalized(options, shape, inputs);
  for (size_t m = 0; m < inputs.size(); ++m) EXPECT_EQ(batch.read(m), together[m]);
}

TEST_F(Orthogonalize, IsWhatCublasMakesOfItButForRounding) {
  if (!Cublas::available()) GTEST_SKIP() << "no cuBLAS";
  for (const auto& [shape, set] : {std::pair<MatrixShape, const char*>{{256, 256}, "polar_express_tight"},
                                   {{70, 130}, "polar_express_tight"},
                                   {{96, 384}, "polar_express_tight"},
                                   {{384, 96}, "polar_express_tight"},
                                   {{256, 256}, "capped3"},
                                   {{70, 130}, "capped4"},
                                   {{128, 384}, "capped4"},
                                   {{384, 128}, "capped3"}}) {
    SCOPED_TRACE(std::string(set) + " " + std::to_string(shape.rows) + "x" + std::to_string(shape.columns));
    const OrthogonalizeOptions options = with(set, Dtype::kBf16);
    const std::vector<Values> inputs{random_matrix(shape, 1), random_matrix(shape, 2)};
    const auto ours = orthogonalized(options, shape, inputs);
    const auto theirs = orthogonalized(options, shape, inputs, Place::kEven, Orthogonalizer::Gemms::kCublas);
    EXPECT_EQ(orthogonalized(options, shape, {inputs[1]}, Place::kOdd, Orthogonalizer::Gemms::kCublas)[0], theirs[1]);
    for (size_t m = 0; m < inputs.size(); ++m) {
      double error = 0;
      double norm = 0;
      for (size_t i = 0; i < ours[m].size(); ++i) {
        error += std::pow(static_cast<double>(ours[m][i]) - static_cast<double>(theirs[m][i]), 2);
        norm += std::pow(static_cast<double>(theirs[m][i]), 2);
      }
      EXPECT_LT(std::sqrt(error / norm), 0.15);
    }
  }
}

// The planner counts what the kernels take without asking them.
TEST_F(Orthogonalize, TakesNoMoreWorkspaceThanThePlannerCounts) {
  const CostTable table = CostTable::h200();
  for (const MatrixShape shape : {MatrixShape{1, 1},
                                  {1, 4096},
                                  {8, 4096},
                                  {4096, 8},
                                  {40, 40},
                                  {64, 64},
                                  {97, 97},
                                  {97, 10000},
                                  {50304, 8},
                                  {128, 128},
                                  {256, 256},
                                  {400, 1600},
                                  {768, 3072},
                                  {1024, 1024}}) {
    const Problem problem = test::one_parameter({shape.rows, shape.columns}, 1);
    const plan::Catalog catalog(problem);
    const plan::CostModel model(catalog, table);
    OrthogonalizeOptions options = with("capped3", problem.wire);
    options.normuon.emplace();
    const int64_t planned = model.workspace_bytes({.rows = shape.rows, .columns = shape.columns});
    EXPECT_LE(Orthogonalizer(0).workspace(shape, 1, options), planned) << shape.rows << "x" << shape.columns;
  }
}

TEST(Batches, FillTheDeviceAndFitIntoMemory) {
  EXPECT_EQ(best_batch_size({768, 768}, 132), 25);
  EXPECT_EQ(best_batch_size({3072, 768}, 132), 25);
  EXPECT_EQ(best_batch_size({11008, 4096}, 132), 2);
  EXPECT_EQ(best_batch_size({1, 1}, 132), 528);
  EXPECT_EQ(best_batch_size({65536, 65536}, 132), 1);
}

}  // namespace
}  // namespace muster::kernels::cuda
