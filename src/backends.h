#pragma once

#include <memory>

#include "kernels/kernels.h"
#include "muster/optimizer.h"

namespace muster {

std::unique_ptr<kernels::Kernels> make_kernels(const Device& device, int threads);

}  // namespace muster
