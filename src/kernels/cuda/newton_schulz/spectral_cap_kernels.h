// What the spectral cap computes besides GEMMs: with matrices of r rows, and with r x r matrices, where r is the number
// of columns of the sketch. src/kernels/spectral_cap.h has the formulas.
//
// Sums of products are in f32 by tensor cores, in an order that the shape alone decides.
#pragma once

#include <cstdint>

#include "kernels/cuda/gemm_sm90/gemm.h"
#include "kernels/cuda/newton_schulz/newton_schulz.h"
#include "kernels/cuda/newton_schulz/wire_batch.h"
#include "kernels/cuda/runtime/launch_queue.h"
#include "kernels/spectral_cap.h"

namespace muster::kernels::cuda {

// Q and E are this many times as large in memory, so that small elements of E are not lost in fp16.
inline constexpr float kBasisScale = 256;

// Partial sums of a Gram matrix of `columns` columns.
inline constexpr int64_t kGramPartColumns = 128;
constexpr int64_t gram_parts(int64_t columns) { return (columns + kGramPartColumns - 1) / kGramPartColumns; }

// r x r matrices per matrix, in this order: N^-1, then the inverse for every pole, then M.
inline constexpr int64_t kPoles = static_cast<int64_t>(kInverseRootPoles.size());
inline constexpr int64_t kSmallMatrices = kPoles + 2;

struct CapTraces {
  double found;   // tr(N^-1 T)
  double within;  // tr((T / d + N)^-1 N)
  double d;
};

// V^T for every matrix of a batch: V is `columns` x r, and so V^T has r rows. With a `remainder`, V^T is the sum of
// both.
struct SketchRows {
  Matrices rows{};
  const void* remainder = nullptr;  // with the pitch and the stride of `rows`
};

// S^T, in the half type.
void write_signs(Half type, const Matrices& signs, LaunchQueue& queue);

// Gram matrices of a batch: per matrix `parts` partial sums of r x r, of which blocks of 16 x 16 on and below the
// diagonal are written.
struct GramParts {
  float* sums = nullptr;
  int64_t parts = 0;  // gram_parts() of V's columns
};

// Partial sums of V^T V.
void sum_gram(Half type, const SketchRows& v, int64_t batch, float* sums, LaunchQueue& queue);

// Adds up the partial sums, into the first of each matrix. Without `sums`, `b` is left out.
void add_gram_parts(int64_t r, int64_t batch, const GramParts& a, const GramParts& b, LaunchQueue& queue);

// L^-1 times `scale`, for gram(V) = L L^T; r x r, row-major, kSmallMatrices apart.
struct InverseCholesky {
  int r;
  int64_t batch;
  GramParts gram;  // added up
  float scale;
  float* inverse;
};
void invert_cholesky(const InverseCholesky& call, LaunchQueue& queue);

// N^-1, the inverse for every pole, and the traces, from N and T times kBasisScale^2, added up.
struct PoleInverses {
  int r;
  int64_t batch;
  GramParts n;
  GramParts t;
  float* small;
  CapTraces* traces;
};
void invert_poles(const PoleInverses& call, LaunchQueue& queue);

// M into `small`, the scalars of X <- X - Q M E, and new first scalars.
struct CapScalars {
  Form form;
  int r;
  int64_t batch;
  const NormSettings* settings;
  const CapTraces* traces;
  float* small;
  Scalars* scalars;
  FirstScalars* first;
};
void combine_poles(const CapScalars& call, LaunchQueue& queue);

// B V^T for a B of r x r per matrix. Without data in v.rows, V^T is kBasisScale I, and B is not read.
struct Transform {
  Half type;
  int64_t batch;
  const float* b = nullptr;
  int64_t b_stride = 0;
  bool lower = false;  // B is zero above the diagonal
  SketchRows v{};
  // The result, rounded. May be v.rows. Without data, it is not written.
  Matrices rows{};
  // What is written besides: the result once more, or what rounding it lost.
  enum class Second : uint8_t { kCopy, kRemainder } second = Second::kCopy;
  void* second_rows = nullptr;  // r rows, with the pitch and the stride of `rows`; null: not written
  void* columns = nullptr;  // columns x 2 r: the transpose of the result, then that of the second; null: not written
};
void transform(const Transform& call, LaunchQueue& queue);

}  // namespace muster::kernels::cuda
