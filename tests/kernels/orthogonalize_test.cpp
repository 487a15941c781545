#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include <gtest/gtest.h>

#include "kernel_support.h"
#include "kernels/cpu/newton_schulz.h"
#include "kernels/spectral_cap.h"
#include "muster/error.h"
#include "plan/catalog.h"
#include "plan/cost_model/cost_model.h"
#include "support/problems.h"
#include "support/reference_options.h"

namespace muster::kernels {
namespace {

using cpu::Form;

// Sizes around vectors, panels of 256 rows and tiles of 256 x 768.
const std::vector<MatrixShape> kShapes{{1, 1},    {1, 12},    {12, 1},    {6, 12},   {12, 6},   {63, 64},  {64, 64},
                                       {65, 64},  {64, 65},   {100, 130}, {130, 90}, {60, 257}, {300, 30}, {20, 800},
                                       {800, 20}, {129, 129}, {40, 256},  {255, 40}, {257, 260}};

// An error made in f32, 6e-8, grows by at most the slope of the polynomials at 0 (polar_express: 990) where singular
// values are small. With a single one, which is then 1, cans takes it to 1.99 with a slope of 26 in its first step
// alone.
constexpr double kTolerance = 2e-4;
constexpr double kSingleTolerance = 1e-2;

double distance(const std::vector<float>& result, const reference::Matrix& expected) {
  double sum = 0;
  for (size_t i = 0; i < result.size(); ++i) sum += std::pow(static_cast<double>(result[i]) - expected.data[i], 2);
  const double shorter = static_cast<double>(std::min(expected.rows, expected.columns));
  return std::sqrt(sum / shorter);
}

TEST(Orthogonalize, AgreesWithTheReferenceForEveryShapeSetAndForm) {
  for (const MatrixShape shape : kShapes) {
    const std::vector<float> input = random_values(shape.rows * shape.columns, 3);
    for (const std::string_view name : coefficient_names()) {
      const Coefficients set = coefficients(name);
      const reference::Matrix expected =
          reference::newton_schulz({shape.rows, shape.columns, to_double(input)}, test::reference_options(set));
      const double tolerance = std::min(shape.rows, shape.columns) == 1 ? kSingleTolerance : kTolerance;
      for (const Form form : {Form::kStandard, Form::kGram}) {
        EXPECT_LT(distance(orthogonalized(set, shape, input, form), expected), tolerance)
            << name_of(shape) << " " << name << (form == Form::kGram ? " gram" : " standard");
      }
    }
  }
}

// A sketch of more columns than the matrix has lines, of as many, and of fewer.
TEST(Orthogonalize, ACappedSetAgreesWithTheReferenceBelowAtAndAboveItsColumns) {
  for (const int sketch : kSketchColumns) {
    Coefficients set = coefficients("capped4");
    set.sketch = sketch;
    for (const int64_t n : {sketch - 1, sketch, sketch + 1, 2 * sketch + 5}) {
      for (const MatrixShape shape : {MatrixShape{n, n}, {n, n + 37}, {2 * n, n}}) {
        const std::vector<float> input = random_values(shape.rows * shape.columns, 11);
        const reference::Matrix expected =
            reference::newton_schulz({shape.rows, shape.columns, to_double(input)}, test::reference_options(set));
        for (const Form form : {Form::kStandard, Form::kGram}) {
          EXPECT_LT(distance(orthogonalized(set, shape, input, form), expected), kTolerance)
              << name_of(shape) << " sketch " << sketch;
        }
      }
    }
  }
}

// The signs of a sketch belong to lines of the short side, whether those are rows or columns.
TEST(Orthogonalize, AMatrixAndItsTransposeAgree) {
  for (const MatrixShape shape : {MatrixShape{40, 70}, {110, 150}, {130, 400}}) {
    const std::vector<float> input = random_values(shape.rows * shape.columns, 12);
    reference::Matrix turned = reference::transpose({shape.rows, shape.columns, to_double(input)});
    const std::vector<float> tall(turned.data.begin(), turned.data.end());
    for (const std::string_view name : {"polar_express", "capped3", "capped4"}) {
      const Coefficients set = coefficients(name);
      const std::vector<float> expected = orthogonalized(set, shape, input, cpu::form_of(shape));
      const std::vector<float> output = orthogonalized(set, {shape.columns, shape.rows}, tall, cpu::form_of(shape));
      const reference::Matrix back = reference::transpose({shape.columns, shape.rows, to_double(output)});
      EXPECT_LT(distance(expected, back), kTolerance) << name_of(shape) << " " << name;
    }
  }
}

// The planner counts what the kernels take without asking them.
TEST(Orthogonalize, TakesNoMoreWorkspaceThanThePlannerCounts) {
  const CostTable table = CostTable::cpu();
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
                                  {768, 3072}}) {
    const Problem problem = test::one_parameter({shape.rows, shape.columns}, 1);
    const plan::Catalog catalog(problem);
    const plan::CostModel model(catalog, table);
    const int64_t planned = model.workspace_bytes({.rows = shape.rows, .columns = shape.columns});
    EXPECT_LE(cpu::newton_schulz_matrix_bytes(cpu::form_of(shape), shape), planned) << name_of(shape);
  }
}

TEST(Orthogonalize, TakesAnyNumberOfSteps) {
  const MatrixShape shape{33, 70};
  const std::vector<float> input = random_values(33 * 70, 4);
  Coefficients set = coefficients("jordan");
  for (size_t steps = 1; steps <= 8; ++steps) {
    set.steps.assign(steps, set.steps.front());
    const reference::Matrix expected =
        reference::newton_schulz({shape.rows, shape.columns, to_double(input)}, test::reference_options(set));
    for (const Form form : {Form::kStandard, Form::kGram}) {
      EXPECT_LT(distance(orthogonalized(set, shape, input, form), expected), kTolerance) << steps;
    }
  }
}

TEST(Orthogonalize, TheFormDependsOnTheShapeAlone) {
  EXPECT_EQ(cpu::form_of({768, 768}), Form::kStandard);
  EXPECT_EQ(cpu::form_of({768, 3072}), Form::kGram);
  EXPECT_EQ(cpu::form_of({3072, 768}), Form::kGram);
  EXPECT_EQ(cpu::form_of({5, 7}), Form::kStandard);
}

class OrthogonalizeBits : public testing::TestWithParam<const char*> {};

// The batch, the threads, the instruction set, the workspace and the alignment change no bit.
TEST_P(OrthogonalizeBits, AMatrixGivesTheSameBitsInEveryBatch) {
  for (const MatrixShape shape : {MatrixShape{1, 12}, {6, 12}, {64, 65}, {130, 400}, {400, 130}, {260, 260}}) {
    const size_t size = static_cast<size_t>(shape.rows * shape.columns);
    cpu::NewtonSchulzOptions options{.coefficients = coefficients(GetParam())};
    std::vector<std::vector<uint16_t>> inputs;
    std::vector<std::vector<uint32_t>> expected;
    for (uint32_t m = 0; m < 7; ++m) {
      inputs.push_back(to_bf16(random_values(shape.rows * shape.columns, m)));
      std::vector<float> output(size);
      Scratch scratch(cpu::newton_schulz_matrix_bytes(cpu::form_of(shape), shape));
      const cpu::MatrixPair pair{inputs.back().data(), output.data()};
      CpuParts().orthogonalize(options, shape, std::span(&pair, 1), scratch.get());
      expected.emplace_back(size);
      std::memcpy(expected.back().data(), output.data(), size * 4);
    }
    for (const cpu::Elementwise* set : all_elementwise()) {
      for (const int threads : {1, 2, 3}) {
        CpuParts kernels(threads, *set);
        for (const size_t batch : {1, 2, 3, 7}) {
          for (const int64_t room : {int64_t{1}, int64_t{2}, int64_t{7}}) {
            std::vector<std::vector<float>> outputs(batch, std::vector<float>(size + 1));
            std::vector<std::vector<uint16_t>> shifted;
            std::vector<cpu::MatrixPair> pairs;
            for (size_t m = 0; m < batch; ++m) {
              shifted.push_back(inputs[m]);
              shifted.back().insert(shifted.back().begin(), 0);  // off by two bytes
            }
            for (size_t m = 0; m < batch; ++m) pairs.push_back({shifted[m].data() + 1, outputs[m].data() + 1});
            Scratch scratch(room * cpu::newton_schulz_matrix_bytes(cpu::form_of(shape), shape));
            kernels.orthogonalize(options, shape, pairs, scratch.get());
            for (size_t m = 0; m < batch; ++m) {
              ASSERT_EQ(std::memcmp(outputs[m].data() + 1, expected[m].data(), size * 4), 0)
                  << name_of(shape) << " " << set->name << " threads " << threads << " batch " << batch << " room "
                  << room << " matrix " << m;
            }
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sets, OrthogonalizeBits, testing::Values("polar_express_tight", "capped3", "capped4"),
                         [](const auto& set) { return std::string(set.param); });

TEST(Orthogonalize, WritesBf16RoundedOnceAndMayWriteOverItsInput) {
  const MatrixShape shape{70, 200};
  const std::vector<uint16_t> input = to_bf16(random_values(70 * 200, 8));
  CpuParts kernels(2);
  Scratch scratch(kernels.orthogonalize_workspace(shape));
  cpu::NewtonSchulzOptions options{.coefficients = coefficients("jordan")};
  std::vector<float> exact(input.size());
  const cpu::MatrixPair to_f32{input.data(), exact.data()};
  kernels.orthogonalize(options, shape, std::span(&to_f32, 1), scratch.get());
  options.output = Dtype::kBf16;
  std::vector<uint16_t> in_place = input;
  const cpu::MatrixPair pair{in_place.data(), in_place.data()};
  kernels.orthogonalize(options, shape, std::span(&pair, 1), scratch.get());
  EXPECT_EQ(in_place, to_bf16(exact));
}

TEST(Orthogonalize, ZeroStaysZero) {
  for (const MatrixShape shape : {MatrixShape{1, 1}, {6, 12}, {64, 64}}) {
    for (const std::string_view name : coefficient_names()) {
      for (const Form form : {Form::kStandard, Form::kGram}) {
        const std::vector<float> zero(static_cast<size_t>(shape.rows * shape.columns));
        EXPECT_EQ(orthogonalized(coefficients(name), shape, zero, form), zero) << name_of(shape) << " " << name;
      }
    }
  }
}

// One such element: no result is right, none may pass for one, and nothing may wait for a loop to converge.
TEST(Orthogonalize, NaNAndInfinityGiveNaNEverywhere) {
  for (const MatrixShape shape : {MatrixShape{6, 12}, {130, 140}, {300, 130}}) {
    for (const std::string_view name : {"capped3", "capped4"}) {
      for (const float bad : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
        std::vector<float> input = random_values(shape.rows * shape.columns, 13);
        input[7] = bad;
        const std::vector<float> output = orthogonalized(coefficients(name), shape, input, cpu::form_of(shape));
        EXPECT_TRUE(std::ranges::all_of(output, [](float x) { return std::isnan(x); }))
            << name_of(shape) << " " << name << " " << bad;
      }
    }
  }
}

// Half of the lines zero, or all equal: the Gram matrices of the sketch are singular.
TEST(Orthogonalize, ACappedSetTakesSingularMatrices) {
  const MatrixShape shape{130, 200};
  for (const int64_t kept : {1, 65}) {
    std::vector<float> input = random_values(shape.rows * shape.columns, 14);
    std::fill(input.begin() + kept * shape.columns, input.end(), 0.0F);
    for (const std::string_view name : {"capped3", "capped4"}) {
      const std::vector<float> output = orthogonalized(coefficients(name), shape, input, cpu::form_of(shape));
      for (int64_t i = 0; i < shape.rows; ++i) {
        double squares = 0;
        for (int64_t j = 0; j < shape.columns; ++j) squares += std::pow(output[i * shape.columns + j], 2);
        // The polynomials leave singular values within 0.16 of 1; lines of zeros get what rounding leaks into them.
        EXPECT_NEAR(std::sqrt(squares), i < kept ? 1 : 0, i < kept ? 0.17 : 1e-3) << name << " " << kept << " " << i;
      }
    }
  }
}

TEST(Orthogonalize, ARowOfZerosStaysZeroWithAol) {
  const MatrixShape shape{8, 20};
  std::vector<float> input = random_values(160, 5);
  std::fill_n(input.begin() + 20, 20, 0.0f);
  const std::vector<float> output = orthogonalized(coefficients("aol4"), shape, input, Form::kStandard);
  for (size_t j = 0; j < 20; ++j) EXPECT_EQ(output[20 + j], 0.0f);
}

// Singular values begin nearer to 1, so that the same steps take small ones further.
TEST(Orthogonalize, TheGramNormComesNearerToOrthogonal) {
  for (const MatrixShape shape : {MatrixShape{64, 64}, {64, 200}}) {
    std::vector<float> input = random_values(shape.rows * shape.columns, 7);
    for (int64_t i = 0; i < shape.rows; ++i) {
      const auto scale = static_cast<float>(std::pow(1e-3, static_cast<double>(i) / 63));
      for (int64_t j = 0; j < shape.columns; ++j) input[static_cast<size_t>(i * shape.columns + j)] *= scale;
    }
    const auto error = [&](std::string_view name) {
      const std::vector<float> result = orthogonalized(coefficients(name), shape, input, cpu::form_of(shape));
      const reference::Matrix o{shape.rows, shape.columns, to_double(result)};
      reference::Matrix off = reference::multiply(o, reference::transpose(o));
      for (int64_t i = 0; i < shape.rows; ++i) off.at(i, i) -= 1;
      return reference::frobenius_norm(off);
    };
    EXPECT_LT(error("polar_express_tight"), 0.95 * error("polar_express")) << name_of(shape);  // 0.88, 0.73
  }
}

// A power of two times the input is the same matrix after normalizing, to the bit.
TEST(Orthogonalize, TheScaleOfTheInputDoesNotMatter) {
  for (const std::string_view name : {"polar_express", "capped4"}) {
    const auto set = coefficients(name);
    for (const MatrixShape shape : {MatrixShape{6, 12}, {64, 64}, {100, 130}}) {
      const std::vector<float> input = random_values(shape.rows * shape.columns, 6);
      const std::vector<float> expected = orthogonalized(set, shape, input, cpu::form_of(shape));
      for (const int exponent : {-100, -60, 60, 100}) {  // 1e-30 to 1e30
        std::vector<float> scaled = input;
        for (float& x : scaled) x = std::ldexp(x, exponent);
        EXPECT_EQ(orthogonalized(set, shape, scaled, cpu::form_of(shape)), expected) << name << " " << exponent;
      }
    }
    for (const MatrixShape shape : {MatrixShape{4, 4}, {100, 100}}) {
      const double side = static_cast<double>(shape.rows);
      const std::vector<float> tiny(static_cast<size_t>(shape.rows * shape.columns),
                                    std::numeric_limits<float>::denorm_min());
      for (float x : orthogonalized(set, shape, tiny, Form::kStandard)) {
        ASSERT_NEAR(x, 1 / side, 0.2 / side) << name << " " << name_of(shape);
      }
    }
  }
}

TEST(Orthogonalize, EpsShrinksWhatIsSmall) {
  const std::vector<float> input = random_values(72, 9, 1e-6f);
  const Coefficients set = coefficients("jordan");
  cpu::NewtonSchulzOptions options{.coefficients = set, .eps = 1e-5, .input = Dtype::kF32};
  CpuParts kernels;
  Scratch scratch(kernels.orthogonalize_workspace({6, 12}));
  std::vector<float> output(72);
  const cpu::MatrixPair pair{input.data(), output.data()};
  kernels.orthogonalize(options, {6, 12}, std::span(&pair, 1), scratch.get());
  const auto expected = reference::newton_schulz({6, 12, to_double(input)}, test::reference_options(set, 1e-5));
  EXPECT_LT(distance(output, expected), kTolerance);
}

TEST(Orthogonalize, SaysWhichWorkspaceItExpected) {
  CpuParts kernels;
  const cpu::NewtonSchulzOptions options{.coefficients = coefficients("jordan")};
  const cpu::MatrixPair pair{};
  EXPECT_THROW(kernels.orthogonalize(options, {8, 8}, std::span(&pair, 1), {}), InvalidArgument);
  EXPECT_NO_THROW(kernels.orthogonalize(options, {8, 8}, {}, {}));
}

TEST(Orthogonalize, CountsTheFlopsOfBothForms) {
  // In units of n^3: 20 for square ones, 14 + 6 r for the ratio r, and the diagonals (n + 1 of n).
  const double cube = 768.0 * 768 * 768;
  const double symmetric = 769.0 / 768;
  EXPECT_NEAR(cpu::newton_schulz_flops(Form::kStandard, {768, 768}, 5) / cube, 10 * symmetric + 10, 1e-9);
  EXPECT_NEAR(cpu::newton_schulz_flops(Form::kGram, {768, 3072}, 5) / cube, (14 + 8) * symmetric + 16, 1e-9);
}

}  // namespace
}  // namespace muster::kernels
