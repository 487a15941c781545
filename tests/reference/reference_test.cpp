// The reference against numbers a person can check.
#include "reference/reference.h"

#include <cmath>

#include <gtest/gtest.h>

namespace muster::reference {
namespace {

TEST(Reference, RoundsToWireTiesToEven) {
  EXPECT_EQ(round_to_wire(1.0 + 0x1p-8, Wire::kBf16), 1.0);               // a tie: down to even
  EXPECT_EQ(round_to_wire(1.0 + 3 * 0x1p-8, Wire::kBf16), 1.0 + 0x1p-6);  // a tie: up to even
  EXPECT_EQ(round_to_wire(-1.0 - 0x1p-8 - 0x1p-30, Wire::kBf16), -1.0 - 0x1p-7);
  EXPECT_EQ(round_to_wire(0.1, Wire::kF32), static_cast<double>(0.1f));
  EXPECT_EQ(round_to_wire(0.1, Wire::kExact), 0.1);
}

TEST(Reference, MomentumInBothForms) {
  Vector m{4};
  MomentumOptions options{.mu = 0.5};
  EXPECT_EQ(momentum_update(options, {2}, m), Vector{2.5});  // m = 3, u = (2 + 3) / 2
  EXPECT_EQ(m, Vector{3});
  options.nesterov = false;
  EXPECT_EQ(momentum_update(options, {1}, m), Vector{2});
  m = {4};
  options.form = MomentumOptions::Form::kSum;
  options.grad_scale = 2;
  EXPECT_EQ(momentum_update(options, {1}, m), Vector{4});  // m = 2 + 2
  options.nesterov = true;
  EXPECT_EQ(momentum_update(options, {1}, m), Vector{4});  // m = 2 + 2, u = 2 + 2
}

// (1.5, -0.5, 0) keeps 1 and brings everything in (0, sqrt 3) to it.
TEST(Reference, NewtonSchulzConvergesToThePolarFactor) {
  NewtonSchulz options{.steps = std::vector<std::array<double, 3>>(30, {1.5, -0.5, 0})};
  // A rotation times diag(3, 1): the polar factor is the rotation.
  const double c = 0.8;
  const double s = 0.6;
  const Matrix x{2, 2, {3 * c, -s, 3 * s, c}};
  const Matrix o = newton_schulz(x, options);
  EXPECT_NEAR(o.at(0, 0), c, 1e-12);
  EXPECT_NEAR(o.at(0, 1), -s, 1e-12);
  EXPECT_NEAR(o.at(1, 0), s, 1e-12);
  const Matrix wide = newton_schulz({1, 3, {0, 0, -7}}, options);
  EXPECT_NEAR(wide.at(0, 2), -1, 1e-12);
  EXPECT_EQ(newton_schulz({2, 1, {0, 0}}, options).data, (Vector{0, 0}));
}

TEST(Reference, NewtonSchulzDividesByTheNormOfXOrOfItsGramMatrix) {
  NewtonSchulz options{.steps = {{1, 0, 0}}, .safety = 2};
  const Matrix x{2, 3, {3, 0, 0, 0, 4, 0}};
  EXPECT_NEAR(newton_schulz(x, options).at(1, 1), 4 / (2 * 5.0), 1e-15);
  options.gram_norm = true;
  EXPECT_NEAR(newton_schulz(x, options).at(1, 1), 4 / (2 * std::pow(81 + 256, 0.25)), 1e-15);
}

TEST(Reference, NorMuonEvensOutTheLines) {
  Vector v;
  const Matrix o{2, 2, {3, 3, 1, -1}};
  const Matrix even = normuon({.beta2 = 0.0, .eps = 0}, o, v);
  EXPECT_EQ(v, (Vector{9, 1}));
  for (double x : even.data) EXPECT_NEAR(std::abs(x), std::sqrt(5.0), 1e-12);  // norm sqrt(20), kept
  EXPECT_EQ(longer_axis({2, 2, {}}), Axis::kRows);
  EXPECT_EQ(longer_axis({2, 3, {}}), Axis::kColumns);
}

TEST(Reference, CautiousDecayOnlyShrinksWhatTheStepShrinks) {
  Vector w{10, -10, 10, 0};
  apply({.lr = 0.5, .scale = 2, .weight_decay = 0.2, .decay = Decay::kCautious}, {1, 1, 0, 1}, w);
  EXPECT_EQ(w, (Vector{10 - 1 - 1, -10 - 1, 10 - 1, -1}));
}

TEST(Reference, TheFirstAdamWStepIsTheSignOfTheGradient) {
  Vector first;
  Vector second;
  Vector w{1, 1};
  adamw({.lr = 0.1, .eps = 0}, {5, -0.01}, first, second, w);
  EXPECT_NEAR(w[0], 0.9, 1e-12);
  EXPECT_NEAR(w[1], 1.1, 1e-12);
  Vector m;
  w = {1, 1};
  lion({.lr = 0.1}, {5, -0.01}, m, w);
  EXPECT_EQ(w, (Vector{0.9, 1.1}));
  EXPECT_NEAR(m[0], 0.05, 1e-12);
}

}  // namespace
}  // namespace muster::reference
