// The CPU backend, with what tests choose: the instruction set of its loops.
#pragma once

#include <memory>

#include "kernels/cpu/elementwise.h"
#include "kernels/kernels.h"

namespace muster::kernels::cpu {

std::unique_ptr<Kernels> make_kernels(const CpuOptions& options, const Elementwise& elementwise);

}  // namespace muster::kernels::cpu
