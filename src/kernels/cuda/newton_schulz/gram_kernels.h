// What Newton-Schulz does with Gram matrices besides GEMMs: adding the identity, rescaling, and measuring the error.
#pragma once

#include "kernels/cuda/newton_schulz/newton_schulz.h"

namespace muster::kernels::cuda {

// gram(q) = gram(z) + a I, where a is the beta of `scalars`. For the Gram form, whose half type is fp16.
void add_identity(const Iterates& iterates, int z, int q, const Scalars* scalars, LaunchQueue& queue);

// Divides line i of X = x[0] by sqrt(sum_j |A_ij|), and A = gram(0) accordingly. A line is a row or column along the
// shorter side.
void rescale_lines(const Iterates& iterates, LaunchQueue& queue);

// Puts t, from the norm of A = gram(0), into the first scalars.
void rescale_scalars(const Iterates& iterates, LaunchQueue& queue);

// Writes ||G - I||_F^2, with G = gram(0), for those of `matrices` (on the device) that ask for it.
void write_gram_error(const Iterates& iterates, const UpdateMatrix* matrices, LaunchQueue& queue);

}  // namespace muster::kernels::cuda
