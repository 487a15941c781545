// What a step goes by, decided on the device: see Stream.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/async_device.h"
#include "kernels/cuda/runtime/queue.h"

namespace muster::kernels::cuda {

void decide(const int64_t* words, int64_t zeros, const int64_t* present, std::span<int32_t> active, Verdict* verdict,
            Queue& queue);
void refuse(std::span<const int64_t> words, std::span<int32_t> active, Verdict* verdict, Queue& queue);
void clip(const int64_t* words, int64_t sums, double grad_scale, double max_norm, Verdict* verdict, Queue& queue);
void count(std::span<const int32_t> active, int64_t* updates, Queue& queue);

}  // namespace muster::kernels::cuda
