// Which GPUs run CUDA code that was compiled for given architectures.
#pragma once

#include <string_view>

namespace muster::kernels {

// `compiled` as CMAKE_CUDA_ARCHITECTURES has it, "80-real;90a-real"; the GPU's compute capability is major.minor. True
// also where `compiled` says nothing definite ("native").
bool runs_on(std::string_view compiled, int major, int minor);

// True if sm_90a is among them: the products of product.cu have no code for anything else, sm_90 included.
bool has_sm90a(std::string_view compiled);

}  // namespace muster::kernels
