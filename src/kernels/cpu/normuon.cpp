#include "kernels/cpu/normuon.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "muster/error.h"

namespace muster::kernels::cpu {
namespace {

// Per task. Any number gives the same bits: each sum belongs to one task.
constexpr int64_t kRows = 64;
constexpr int64_t kColumns = 128;

int64_t align(int64_t bytes) { return (bytes + 63) / 64 * 64; }

// The workspace of one matrix: per line, a sum of squares and a factor.
struct LineScratch {
  double* squares;
  float* factors;
};

LineScratch scratch_of(const NorMuonBatch& batch, int64_t matrix) {
  const int64_t longest = std::max(batch.shape.rows, batch.shape.columns);
  char* base = static_cast<char*>(batch.workspace.data) + matrix * normuon_matrix_bytes(batch.shape);
  return {reinterpret_cast<double*>(base), reinterpret_cast<float*>(base + align(longest * 8))};
}

// Updates the variances from the squares, and computes the factors, which keep the matrix's norm.
void find_factors(const NorMuonBatch& batch, const LineScratch& scratch, float* variance) {
  const NorMuonOptions& options = batch.options;
  const bool by_rows = options.axis == LineAxis::kRows;
  const int64_t lines = by_rows ? batch.shape.rows : batch.shape.columns;
  const int64_t length = by_rows ? batch.shape.columns : batch.shape.rows;
  const double rest = 1 - options.beta2;
  double before = 0;
  double after = 0;
  const auto divisor = [&](int64_t i) { return std::sqrt(static_cast<double>(variance[i])) + options.eps; };
  for (int64_t i = 0; i < lines; ++i) {
    const double mean = scratch.squares[i] / static_cast<double>(length);
    const double v = static_cast<double>(variance[i]);
    variance[i] = static_cast<float>(v + (mean - v) * rest);
    before += scratch.squares[i];
    after += scratch.squares[i] / (divisor(i) * divisor(i));
  }
  const double keep = after > 0 ? std::sqrt(before / after) : 0;
  for (int64_t i = 0; i < lines; ++i) scratch.factors[i] = static_cast<float>(keep / divisor(i));
}

}  // namespace

int64_t normuon_matrix_bytes(MatrixShape shape) {
  const int64_t longest = std::max(shape.rows, shape.columns);
  return align(longest * 8) + align(longest * 4);
}

void normuon(const Elementwise& elementwise, ThreadPool& pool, const NorMuonBatch& batch) {
  const auto& matrices = batch.matrices;
  const int64_t rows = batch.shape.rows;
  const int64_t columns = batch.shape.columns;
  if (matrices.empty() || rows == 0 || columns == 0) return;
  const int64_t count = static_cast<int64_t>(matrices.size());
  const int64_t needed = count * normuon_matrix_bytes(batch.shape);
  if (batch.workspace.bytes < needed) {
    throw InvalidArgument("normuon: workspace of " + std::to_string(batch.workspace.bytes) + " bytes, expected " +
                          std::to_string(needed));
  }
  const bool by_rows = batch.options.axis == LineAxis::kRows;
  const int64_t row_tasks = (rows + kRows - 1) / kRows;
  const int64_t column_tasks = (columns + kColumns - 1) / kColumns;
  const auto last_row = [&](int64_t task) { return std::min(rows, (task + 1) * kRows); };

  if (by_rows) {
    pool.run(count * row_tasks, [&](int64_t i, int) {
      const int64_t m = i / row_tasks;
      const int64_t task = i % row_tasks;
      const LineScratch scratch = scratch_of(batch, m);
      for (int64_t r = task * kRows; r < last_row(task); ++r) {
        scratch.squares[r] = elementwise.sum_squares(Dtype::kF32, matrices[m].o + r * columns, columns);
      }
    });
  } else {
    pool.run(count * column_tasks, [&](int64_t i, int) {
      const int64_t m = i / column_tasks;
      const int64_t begin = i % column_tasks * kColumns;
      const int64_t width = std::min(kColumns, columns - begin);
      double* squares = scratch_of(batch, m).squares + begin;
      std::fill_n(squares, width, 0.0);
      for (int64_t r = 0; r < rows; ++r) elementwise.add_squares(matrices[m].o + r * columns + begin, width, squares);
    });
  }
  pool.run(count, [&](int64_t m, int) { find_factors(batch, scratch_of(batch, m), matrices[m].variance); });
  pool.run(count * row_tasks, [&](int64_t i, int) {
    const int64_t m = i / row_tasks;
    const int64_t task = i % row_tasks;
    const float* factors = scratch_of(batch, m).factors;
    for (int64_t r = task * kRows; r < last_row(task); ++r) {
      const float* const row = matrices[m].o + r * columns;
      char* output = static_cast<char*>(matrices[m].output) + r * columns * byte_size(batch.wire);
      if (by_rows) {
        elementwise.scale(row, columns, factors[r], batch.wire, output);
      } else {
        elementwise.multiply(row, columns, factors, batch.wire, output);
      }
    }
  });
}

}  // namespace muster::kernels::cpu
