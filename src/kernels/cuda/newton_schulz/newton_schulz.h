// Newton-Schulz on the device: the standard form in bf16, the Gram form in fp16, sums in f32.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/cuda/gemm_sm90/gemm.h"
#include "kernels/cuda/runtime/launch_queue.h"
#include "kernels/kernels.h"

namespace muster::kernels::cuda {

enum class Form : uint8_t { kStandard, kGram };

// The Gram form has fewer FLOPs for matrices at least twice as long as wide. Coefficients take it only if their result
// stays bounded when every step's input is off by 2 %: those of cans and aol4 run away. A function of shape and
// coefficients alone.
Form form_of(MatrixShape shape, const Coefficients& coefficients);
bool long_enough_for_gram(MatrixShape shape);
bool tolerates_gram(const Coefficients& coefficients);

// What X is divided by, beside its norm: a little more than the set says, where rounding of a step in bf16 would let a
// singular value of 1 run away (cans, aol4).
double half_safety(const Coefficients& coefficients);

constexpr Half half_of(Form form) { return form == Form::kGram ? Half::kF16 : Half::kBf16; }
constexpr int grams_of(Form form) { return form == Form::kGram ? 4 : 2; }
// Before these steps the Gram form starts anew from X. What half precision takes from R grows with the square of every
// step's slope: by 950 until the third of polar_express, which would send singular values out of its range and the next
// two to 1000. Before the fifth it is 140, and no step goes by what comes of that (gram_rounding_test.cpp).
constexpr bool starts_anew(size_t step) { return step % 3 == 2; }

constexpr int64_t pitch_of(int64_t columns) { return (columns + 7) / 8 * 8; }

// X is not normalized: its first Gram matrix A and what the first step makes of both are. With f = 1 / (safety ||X||),
// and t = 1 / (safety^2 ||A||) where A rescales X, else 1:
struct FirstScalars {
  Scalars gram;        // f^2, 0
  Scalars polynomial;  // c t^2, b t
  Scalars grams;       // t, a t, of the Gram form
  Scalars product;     // f sqrt(t), a f sqrt(t); the Gram form adds nothing, and has no use for the second
};

// Matrices of one shape on their way through the steps, in the type of the form.
struct Iterates {
  Cublas* cublas = nullptr;  // which multiplies, if there is one
  Form form = Form::kStandard;
  MatrixShape shape{};
  int64_t batch = 0;
  std::array<Matrices, 2> x;       // the first holds X
  std::array<void*, 4> grams{};    // grams_of(form), each batch x n x pitch_of(n), with n the shorter side
  float* lines = nullptr;          // batch x n, for rescaling
  const double* safety = nullptr;  // half_safety, on the device
  FirstScalars* norms = nullptr;   // one a matrix, on the device, with t = 1
  float* row_squares = nullptr;    // of the result, as products sum them; null: nobody wants them, as from cuBLAS
};

// Which of `x` holds the result.
int newton_schulz(const Coefficients& coefficients, const Iterates& iterates, LaunchQueue& queue);

// ||G - I||_F^2 for those of `matrices` (on the device) that ask for it, with G the Gram matrix of `o`, a result of
// newton_schulz(). Overwrites the first Gram matrix and `lines` of the iterates.
void measure_gram_error(const Iterates& iterates, const Matrices& o, const UpdateMatrix* matrices, LaunchQueue& queue);

// Floating-point operations executed for one matrix, tiles included.
double newton_schulz_flops(Form form, MatrixShape shape, int64_t steps);

}  // namespace muster::kernels::cuda
