// Which GPUs run CUDA code that was compiled for given architectures.
#pragma once

#include <string_view>

namespace muster::kernels {

// True if a GPU of compute capability major.minor runs code compiled for `compiled`, which is written as
// CMAKE_CUDA_ARCHITECTURES: "80-real;90a-real". An entry without a number ("native") counts as running everywhere.
bool runs_on(std::string_view compiled, int major, int minor);

// True if sm_90a is among them. Our GEMM has code for nothing else, not even for sm_90.
bool has_sm90a(std::string_view compiled);

}  // namespace muster::kernels
