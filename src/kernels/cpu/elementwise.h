// The loops over elements, compiled once per instruction set. All versions give the same bits: they do the same IEEE
// operations in the same order, contract nothing into FMA, and sum over a fixed number of lanes.
#pragma once

#include <cstdint>

#include "kernels/kernels.h"

namespace muster::kernels::cpu {

struct Elementwise {
  const char* name;

  // Each works on one block, or a piece of one, on one thread.
  void (*momentum_pack)(const MomentumOptions& options, const MomentumBlock& block);
  void (*apply)(const ApplyOptions& options, const ApplyBlock& block);
  void (*adamw)(const AdamWOptions& options, const ElementRange& range);
  void (*lion)(const LionOptions& options, const ElementRange& range);

  void (*subtract_from_weights)(WeightForm form, const ChangeBlock& block);

  // The sum of squares of one row, in double.
  double (*sum_squares)(Dtype dtype, const void* values, int64_t count);
  // sums[j] += values[j]^2
  void (*add_squares)(const float* values, int64_t count, double* sums);
  // to[j] = values[j] * factor, multiplied in double and rounded to f32.
  void (*normalize)(Dtype dtype, const void* values, int64_t count, double factor, float* to);
  // to[j] = values[j] * factor and to[j] = values[j] * factors[j], in f32 and rounded to `wire`. `to` may be `values`.
  void (*scale)(const float* values, int64_t count, float factor, Dtype wire, void* to);
  void (*multiply)(const float* values, int64_t count, const float* factors, Dtype wire, void* to);

  // The sum over j of value_fingerprint(values[j], place + j).
  uint64_t (*fingerprint)(Dtype dtype, const void* values, int64_t count, int64_t place);
  bool (*all_finite)(Dtype dtype, const void* values, int64_t count);
  void (*zero_non_finite)(Dtype dtype, void* values, int64_t count);
};

// Null if this build or this machine lacks the instructions.
const Elementwise* portable_elementwise();
const Elementwise* avx2_elementwise();
const Elementwise* avx512_elementwise();

const Elementwise& best_elementwise();

}  // namespace muster::kernels::cpu
