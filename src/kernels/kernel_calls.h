// The options and operands of the calls in kernels.h.
//
// A block has rows x columns elements. Element (i, j) of an operand is at its pointer + i * its stride + j. Strides are
// in elements, and rows may start at any address. Blocks may be empty. No two blocks of a call may write one element.
//
// `active` is null or points to a flag on the device; if the flag is 0, the block changes nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "muster/group.h"
#include "muster/problem.h"

namespace muster::kernels {

// The hyperparameters of a group that schedules change from step to step. Kernels read them on the device, so that new
// values need no new capture. A null pointer to them stands for these defaults.
struct Rates {
  double lr = 0.02;
  double weight_decay = 0;
  double momentum = 0.95;
};

struct MomentumOptions {
  // Each f32 or bf16. Momentum is rounded when it is stored; the update is computed from the unrounded value.
  Dtype grad = Dtype::kF32;
  Dtype momentum = Dtype::kF32;
  Dtype wire = Dtype::kBf16;
  MomentumForm form = MomentumForm::kEma;
  bool nesterov = true;          // false: the update is the momentum
  double grad_scale = 1;         // multiplies every gradient first
  const double* clip = nullptr;  // on the device; multiplies grad_scale. Null: 1
  const Rates* rates = nullptr;
};

struct MomentumBlock {
  int64_t rows = 0;
  int64_t columns = 0;
  const void* grad = nullptr;  // null: zeros
  int64_t grad_stride = 0;
  void* momentum = nullptr;  // null: the update is the gradient; on the CPU
  int64_t momentum_stride = 0;
  void* update = nullptr;  // in the wire dtype; null: only momentum is updated
  int64_t update_stride = 0;
  const int32_t* active = nullptr;
};

// Bytes of an element of a weight, and of its second array (master or mantissa); 0: the form has none.
constexpr int64_t weight_bytes(WeightForm form) { return form == WeightForm::kF32 ? 4 : 2; }
constexpr int64_t extra_bytes(WeightForm form) {
  if (form == WeightForm::kBf16Master) return 4;
  return form == WeightForm::kBf16Mantissa ? 2 : 0;
}

// Weights in memory. Stochastic rounding and row factors alone read the last three: element (i, j) has index
// first_index + i * row_index_stride + j in its parameter, and `stream` is a number of the parameter that is the same
// on every rank.
struct WeightBlock {
  void* data = nullptr;
  void* extra = nullptr;  // the form's second array, with the stride of `data`; null if the form has none
  int64_t stride = 0;
  uint64_t stream = 0;
  int64_t first_index = 0;
  int64_t row_index_stride = 0;
};

// Factors of a parameter's rows, on the device. The weights of row r are multiplied by factors[number_of_row[r]], or by
// 1 if that number is negative, after an update and before their one rounding. Element i of the parameter is in row i /
// row_length. No factors: 1.
struct RowFactors {
  const float* factors = nullptr;
  const int32_t* number_of_row = nullptr;
  int64_t row_length = 1;
};

// Gradients are clipped by min(1, max / (norm + kClipEps)).
inline constexpr double kClipEps = 1e-6;

// The state of stochastic rounding.
struct Rounding {
  uint64_t seed = 0;
  uint64_t step = 0;
};

struct ApplyOptions {
  Dtype wire = Dtype::kBf16;
  WeightForm form = WeightForm::kF32;
  Decay decay = Decay::kPlain;
  Rounding rounding{};  // for kBf16Stochastic
  const Rates* rates = nullptr;
};

// W <- W (1 - lr multiplier wd) where decay applies, then W <- W - lr multiplier scale U. `scale` depends on the shape;
// it does not scale decay. Last, W <- W times the factor of its row.
struct ApplyBlock {
  int64_t rows = 0;
  int64_t columns = 0;
  const void* update = nullptr;  // in the wire dtype; null: W neither decays nor moves, and is only multiplied
  int64_t update_stride = 0;
  WeightBlock weight{};
  double scale = 1;
  double multiplier = 1;
  const int32_t* active = nullptr;
  RowFactors row_factors{};
};

struct AdamWOptions {
  Dtype grad = Dtype::kF32;
  WeightForm form = WeightForm::kF32;
  Decay decay = Decay::kPlain;
  Rounding rounding{};
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  int64_t step = 1;  // for the bias correction, from 1; ElementRange::updates overrides it
  double grad_scale = 1;
  const double* clip = nullptr;
  const Rates* rates = nullptr;
};

struct LionOptions {
  Dtype grad = Dtype::kF32;
  WeightForm form = WeightForm::kF32;
  Decay decay = Decay::kPlain;
  Rounding rounding{};
  double beta1 = 0.9;
  double beta2 = 0.99;
  double grad_scale = 1;
  const double* clip = nullptr;
  const Rates* rates = nullptr;
};

// Consecutive elements of one parameter, for AdamW and Lion. The stride of `weight` is not read.
struct ElementRange {
  int64_t count = 0;
  const void* grad = nullptr;  // null: zeros
  float* first = nullptr;      // AdamW: mean of gradients; Lion: momentum
  float* second = nullptr;     // AdamW: mean of squares
  WeightBlock weight{};
  double multiplier = 1;             // of lr
  const int64_t* updates = nullptr;  // on the device: AdamW's step is *updates + 1. Null: the step of the options
  const int32_t* active = nullptr;
  RowFactors row_factors{};
};

// NorMuon keeps one variance per line: per row or per column of a matrix.
enum class LineAxis : uint8_t { kRows, kColumns };
LineAxis line_axis(NormAxis axis, int64_t rows, int64_t columns);  // kLonger: the longer side; for a square, rows

struct NorMuonOptions {
  LineAxis axis = LineAxis::kRows;
  double beta2 = 0.95;
  double eps = 1e-8;
};

struct MatrixShape {
  int64_t rows = 0;
  int64_t columns = 0;
};

struct OrthogonalizeOptions {
  Coefficients coefficients{};
  Dtype wire = Dtype::kBf16;  // of the matrices, before and after: f32 or bf16
  std::optional<NorMuonOptions> normuon{};
};

// A contiguous, row-major matrix, replaced by its orthogonal factor, which NorMuon scales if the options have it.
struct UpdateMatrix {
  void* matrix = nullptr;
  float* variance = nullptr;  // NorMuon's, one per line; starts at 0
  const int32_t* active = nullptr;
  // Null, or on the device: receives ||G - I||_F^2, where G is the Gram matrix of the orthogonal factor along its
  // shorter side, before NorMuon scales it.
  double* gram_error = nullptr;
};

// Scratch of one call, aligned to 64 bytes. More than the least makes a batch faster and changes no bit.
struct Workspace {
  void* data = nullptr;
  int64_t bytes = 0;
};

// Matrices of one shape that are orthogonalized in one call.
struct OrthogonalizeBatch {
  OrthogonalizeOptions options{};
  MatrixShape shape{};
  std::span<const UpdateMatrix> matrices{};
  Workspace workspace{};
};

// Weights, and as many contiguous f32 values, from which the weights are subtracted.
struct ChangeBlock {
  int64_t rows = 0;
  int64_t columns = 0;
  WeightBlock weight{};
  float* values = nullptr;
  const int32_t* active = nullptr;
};

// f32 or bf16 values that are inspected.
struct ValueBlock {
  int64_t rows = 0;
  int64_t columns = 0;
  const void* data = nullptr;  // null: the block is skipped
  int64_t stride = 0;
  const int32_t* active = nullptr;
  int64_t number = 0;  // index of the sum or flag that the block counts towards
};

// Consecutive values of which a fingerprint is taken: the sum, modulo 2^64, of a hash of each value's bits and index.
struct FingerprintRange {
  int64_t count = 0;
  const void* data = nullptr;  // null: the fingerprint is 0
  int64_t word = 0;            // index of the word that `factor` times the fingerprint is added to
  uint64_t factor = 1;
  uint64_t total_factor = 0;  // `total_factor` times the fingerprint is added to the total
};

// Rows that are copied from one place to another.
template <typename To>
struct TransferBlock {
  int64_t rows = 0;
  int64_t columns = 0;
  const void* from = nullptr;  // null: zeros
  int64_t from_stride = 0;
  To* to = nullptr;
  int64_t to_stride = 0;
};
using CopyBlock = TransferBlock<void>;  // elements of one width
using AddBlock = TransferBlock<float>;  // values that are added to f32 sums

struct DivideRange {
  int64_t count = 0;
  float* data = nullptr;
  float divisor = 1;
};

// Rows that are copied between the device and the host. Everything but `rows` is in bytes.
struct HostRows {
  int64_t rows = 1;
  int64_t bytes = 0;  // per row
  int64_t device_stride = 0;
  int64_t host_stride = 0;
};

}  // namespace muster::kernels
