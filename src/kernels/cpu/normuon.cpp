#include "kernels/cpu/normuon.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "muster/error.h"

namespace muster::kernels::cpu {
namespace {

// Of a task, which may be any number: the sums are of single lines, or columns that do not meet.
constexpr int64_t kRows = 64;
constexpr int64_t kColumns = 128;

int64_t align(int64_t bytes) { return (bytes + 63) / 64 * 64; }

// The scratch of one matrix: a sum of squares and a factor for each line.
struct Lines {
  double* squares;
  float* factors;
};

Lines lines_of(Workspace workspace, MatrixShape shape, int64_t matrix) {
  const int64_t longest = std::max(shape.rows, shape.columns);
  char* base = static_cast<char*>(workspace.data) + matrix * normuon_matrix_bytes(shape);
  return {reinterpret_cast<double*>(base), reinterpret_cast<float*>(base + align(longest * 8))};
}

// From the squares: the new variances, and the factors that keep the norm.
void find_factors(const NorMuonOptions& options, int64_t lines, int64_t length, const Lines& scratch, float* variance) {
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

void normuon(const Elementwise& elementwise, ThreadPool& pool, const NorMuonOptions& options, MatrixShape shape,
             std::span<const NorMuonMatrix> batch, Workspace workspace) {
  if (batch.empty() || shape.rows == 0 || shape.columns == 0) return;
  const int64_t count = static_cast<int64_t>(batch.size());
  const int64_t needed = count * normuon_matrix_bytes(shape);
  if (workspace.bytes < needed) {
    throw InvalidArgument("normuon: workspace of " + std::to_string(workspace.bytes) + " bytes, expected " +
                          std::to_string(needed));
  }
  const int64_t rows = shape.rows;
  const int64_t columns = shape.columns;
  const bool by_rows = options.axis == LineAxis::kRows;
  const int64_t row_tasks = (rows + kRows - 1) / kRows;
  const int64_t column_tasks = (columns + kColumns - 1) / kColumns;
  const auto last_row = [&](int64_t task) { return std::min(rows, (task + 1) * kRows); };

  if (by_rows) {
    pool.run(count * row_tasks, [&](int64_t i, int) {
      const int64_t m = i / row_tasks;
      const int64_t task = i % row_tasks;
      const Lines scratch = lines_of(workspace, shape, m);
      for (int64_t r = task * kRows; r < last_row(task); ++r) {
        scratch.squares[r] = elementwise.sum_squares(Dtype::kF32, batch[m].o + r * columns, columns);
      }
    });
  } else {
    pool.run(count * column_tasks, [&](int64_t i, int) {
      const int64_t m = i / column_tasks;
      const int64_t begin = i % column_tasks * kColumns;
      const int64_t width = std::min(kColumns, columns - begin);
      double* squares = lines_of(workspace, shape, m).squares + begin;
      std::fill_n(squares, width, 0.0);
      for (int64_t r = 0; r < rows; ++r) elementwise.add_squares(batch[m].o + r * columns + begin, width, squares);
    });
  }
  pool.run(count, [&](int64_t m, int) {
    const Lines scratch = lines_of(workspace, shape, m);
    find_factors(options, by_rows ? rows : columns, by_rows ? columns : rows, scratch, batch[m].variance);
  });
  pool.run(count * row_tasks, [&](int64_t i, int) {
    const int64_t m = i / row_tasks;
    const int64_t task = i % row_tasks;
    const float* factors = lines_of(workspace, shape, m).factors;
    for (int64_t r = task * kRows; r < last_row(task); ++r) {
      char* output = static_cast<char*>(batch[m].output) + r * columns * byte_size(options.wire);
      elementwise.scale_to_wire(batch[m].o + r * columns, columns, by_rows ? factors[r] : 0,
                                by_rows ? nullptr : factors, options.wire, output);
    }
  });
}

}  // namespace muster::kernels::cpu
