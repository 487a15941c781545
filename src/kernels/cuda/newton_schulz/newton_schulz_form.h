// Which form of Newton-Schulz a matrix takes on the device: the standard form in bf16, or the Gram form in fp16.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/gemm_sm90/gemm.h"
#include "kernels/host_device.h"
#include "kernels/kernel_calls.h"

namespace muster::kernels::cuda {

enum class Form : uint8_t { kStandard, kGram };

// The Gram form has fewer FLOPs for matrices with one side at least twice as long as the other. It is used with
// coefficients whose result stays bounded if every step's input is off by 2 %: those of cans and aol4 diverge.
Form form_of(MatrixShape shape, const Coefficients& coefficients);
bool long_enough_for_gram(MatrixShape shape);
bool tolerates_gram(const Coefficients& coefficients);

// X is divided by this times its norm: the safety of the coefficients, or a little more if rounding a step in bf16
// would let a singular value of 1 diverge (cans, aol4).
double half_safety(const Coefficients& coefficients);

constexpr Half half_of(Form form) { return form == Form::kGram ? Half::kF16 : Half::kBf16; }
constexpr int grams_of(Form form) { return form == Form::kGram ? 4 : 2; }

// The Gram form restarts from X before these steps. The rounding error of R grows with the square of every step's
// slope: 950 times before the third step of polar_express, where singular values would leave the range of fp16 and
// reach 1000 two steps later. Before the fifth it is 140 times, and no step reads R after that
// (gram_rounding_test.cpp). Three steps after the spectral cap need none if they are no steeper than capped3: no step
// reads R after the third.
bool restarts(const Coefficients& coefficients, size_t step);

// The power of two that the norm of X is brought to before the steps: 256 to 512 for fp16, so that squares of its
// elements do not vanish, and 1 to 2 for bf16.
MUSTER_HOST_DEVICE constexpr int norm_exponent(Form form) { return form == Form::kGram ? 8 : 0; }

// Floating-point operations of the steps executed for one matrix, including those that fill up tiles.
double newton_schulz_flops(Form form, MatrixShape shape, const Coefficients& coefficients);

}  // namespace muster::kernels::cuda
