// The CPU backend for a given instruction set of its loops, which tests choose.
#pragma once

#include <memory>

#include "kernels/cpu/elementwise.h"
#include "kernels/kernels.h"

namespace muster::kernels::cpu {

std::unique_ptr<Kernels> make_kernels(const CpuOptions& options, const Elementwise& elementwise);

}  // namespace muster::kernels::cpu
