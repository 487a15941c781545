// The loops over elements, compiled once for each instruction set. All versions give the same bits: the same IEEE
// operations in the same order, nothing contracted into FMA, and sums over lanes whose number is fixed.
#pragma once

#include <cstdint>

#include "kernels/kernels.h"

namespace muster::kernels::cpu {

struct Elementwise {
  const char* name;

  // One block, or a piece of one, on one thread.
  void (*momentum_pack)(const MomentumOptions& options, const MomentumBlock& block);
  void (*apply)(const ApplyOptions& options, const ApplyBlock& block);
  void (*adamw)(const AdamWOptions& options, const ElementRange& range);
  void (*lion)(const LionOptions& options, const ElementRange& range);

  void (*subtract_from_weights)(WeightForm form, const ChangeBlock& block);

  // Of one row, in double. `values` in `dtype`.
  double (*sum_squares)(Dtype dtype, const void* values, int64_t count);
  // sums[j] += values[j]^2
  void (*add_squares)(const float* values, int64_t count, double* sums);
  // to[j] = values[j] * factor, multiplied in double and rounded to f32.
  void (*normalize)(Dtype dtype, const void* values, int64_t count, double factor, float* to);
  // to[j] = values[j] * factor, or * factors[j] where that is given; multiplied in f32 and rounded to `wire`.
  void (*scale_to_wire)(const float* values, int64_t count, float factor, const float* factors, Dtype wire, void* to);

  // The sum over j of value_print(values[j], place + j).
  uint64_t (*fingerprint)(Dtype dtype, const void* values, int64_t count, int64_t place);
  bool (*all_finite)(Dtype dtype, const void* values, int64_t count);
  void (*zero_non_finite)(Dtype dtype, void* values, int64_t count);
};

// Null where this build or this machine has no such instructions.
const Elementwise* portable_elementwise();
const Elementwise* avx2_elementwise();
const Elementwise* avx512_elementwise();

const Elementwise& best_elementwise();

}  // namespace muster::kernels::cpu
