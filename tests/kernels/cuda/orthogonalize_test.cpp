#include "kernels/cuda/orthogonalize.h"

#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "device_memory.h"
#include "kernels/cuda/product.h"
#include "reference/reference.h"

namespace muster::kernels::cuda {
namespace {

class Orthogonalize : public DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    if (!IsSkipped() && !products_available(0)) GTEST_SKIP() << "not sm_90";
  }
};

std::vector<float> random_matrix(MatrixShape shape, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 3);
  std::vector<float> out(static_cast<size_t>(shape.rows * shape.columns));
  for (float& value : out) value = normal(random);
  return out;
}

// Orthogonalizes a batch of f32 matrices into f32.
std::vector<std::vector<float>> run(const Coefficients& coefficients, MatrixShape shape,
                                    const std::vector<std::vector<float>>& inputs) {
  Orthogonalizer orthogonalizer(0);
  std::vector<std::unique_ptr<DeviceVector<float>>> in;
  std::vector<std::unique_ptr<DeviceVector<float>>> out;
  std::vector<MatrixPair> pairs;
  for (const std::vector<float>& input : inputs) {
    in.push_back(std::make_unique<DeviceVector<float>>(input));
    out.push_back(std::make_unique<DeviceVector<float>>(input.size()));
    pairs.push_back({in.back()->data(), out.back()->data()});
  }
  const int64_t bytes = orthogonalizer.workspace(shape, static_cast<int64_t>(pairs.size()));
  const DeviceVector<std::byte> workspace(static_cast<size_t>(bytes));
  OrthogonalizeOptions options;
  options.coefficients = coefficients;
  options.input = Dtype::kF32;
  options.output = Dtype::kF32;
  orthogonalizer.run(options, shape, pairs, {workspace.data(), bytes}, nullptr);
  check(cudaDeviceSynchronize(), "orthogonalize");
  std::vector<std::vector<float>> results;
  for (const auto& result : out) results.push_back(result->values());
  return results;
}

reference::Matrix expected(const Coefficients& set, MatrixShape shape, const std::vector<float>& input) {
  reference::NewtonSchulz options;
  for (const Coefficients::Step& step : set.steps) options.steps.push_back({step.a, step.b, step.c});
  options.safety = half_safety(set);
  options.aol = set.rescale == Coefficients::Rescale::kAol;
  return reference::newton_schulz({shape.rows, shape.columns, reference::Vector(input.begin(), input.end())}, options);
}

// Root mean square of O O^T - I (tall: O^T O - I), a row.
double orthogonality(const reference::Matrix& o) {
  const reference::Matrix t = reference::transpose(o);
  const reference::Matrix gram = o.rows <= o.columns ? reference::multiply(o, t) : reference::multiply(t, o);
  double sum = 0;
  for (int64_t i = 0; i < gram.rows; ++i) {
    for (int64_t j = 0; j < gram.columns; ++j) sum += std::pow(gram.at(i, j) - (i == j ? 1 : 0), 2);
  }
  return std::sqrt(sum / static_cast<double>(gram.rows));
}

TEST_F(Orthogonalize, IsAsGoodAsTheReferenceForEveryShapeAndSet) {
  for (const MatrixShape shape : {MatrixShape{96, 96},
                                  {256, 256},
                                  {130, 70},
                                  {70, 130},
                                  {200, 400},
                                  {384, 96},
                                  {1, 12},
                                  {6, 12},
                                  {33, 257},
                                  {257, 33}}) {
    for (const std::string_view name : coefficient_names()) {
      SCOPED_TRACE(std::string(name) + " " + std::to_string(shape.rows) + "x" + std::to_string(shape.columns));
      const Coefficients set = coefficients(name);
      const std::vector<float> input = random_matrix(shape, 5);
      const std::vector<float> result = run(set, shape, {input})[0];
      const reference::Matrix exact = expected(set, shape, input);
      const reference::Matrix ours{shape.rows, shape.columns, reference::Vector(result.begin(), result.end())};
      double error = 0;
      for (size_t i = 0; i < result.size(); ++i) error += std::pow(ours.data[i] - exact.data[i], 2);
      // The polynomials magnify rounding, cans most: its slope at 1 is 22. Steps in half precision leave a digit of
      // what float64 gets, and singular values as near to 1 as those of the set are anyway: within 0.13, or where more,
      // jordan's.
      EXPECT_LT(std::sqrt(error) / reference::frobenius_norm(exact), 0.15);
      EXPECT_LT(orthogonality(ours), std::max(orthogonality(exact), 0.25) + 0.03);
    }
  }
}

TEST(Forms, GramIsForLongMatricesAndCoefficientsThatTolerateRounding) {
  EXPECT_EQ(form_of({768, 768}, coefficients("jordan")), Form::kStandard);
  for (const MatrixShape shape : {MatrixShape{768, 3072}, {3072, 768}}) {
    for (const char* name : {"jordan", "quintic", "polar_express_safe"}) {
      EXPECT_EQ(form_of(shape, coefficients(name)), Form::kGram) << name;
    }
    for (const char* name : {"polar_express", "cans", "aol4"}) {
      EXPECT_EQ(form_of(shape, coefficients(name)), Form::kStandard) << name;
    }
  }
}

TEST_F(Orthogonalize, GivesAMatrixTheSameBitsInAnyBatch) {
  for (const MatrixShape shape : {MatrixShape{256, 256}, {70, 130}, {96, 384}}) {
    std::vector<std::vector<float>> inputs;
    for (unsigned seed = 0; seed < 150; ++seed) inputs.push_back(random_matrix(shape, seed));
    const Coefficients set = coefficients("polar_express_safe");
    const auto together = run(set, shape, inputs);
    for (const size_t i : {size_t{0}, size_t{64}, size_t{149}}) EXPECT_EQ(run(set, shape, {inputs[i]})[0], together[i]);
  }
}

TEST_F(Orthogonalize, LeavesZeroAlone) {
  for (const MatrixShape shape : {MatrixShape{64, 64}, {32, 128}}) {
    const std::vector<float> zero(static_cast<size_t>(shape.rows * shape.columns));
    EXPECT_EQ(run(coefficients("polar_express_safe"), shape, {zero})[0], zero);
  }
}

}  // namespace
}  // namespace muster::kernels::cuda
