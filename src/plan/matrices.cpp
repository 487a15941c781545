#include "plan/matrices.h"

#include <limits>

#include "base/text.h"

namespace muster::plan {

using base::list_text;

namespace {

// Runs of one parameter whose matrices are column blocks of a view: each of their rows is a flat range.
constexpr int64_t kMaxRowRuns = int64_t{1} << 20;

// Shapes of valid parameters do not overflow; views may.
bool same_elements(const Shape& view, const Shape& shape) {
  int64_t n = 1;
  for (const int64_t dim : view) {
    if (__builtin_mul_overflow(n, dim, &n)) return false;
  }
  return n == element_count(shape);
}

std::vector<int64_t> sizes(const std::vector<Block>& blocks) {
  std::vector<int64_t> out;
  for (const Block& block : blocks) out.push_back(block.size);
  return out;
}

void check_blocks(const std::string& name, const char* what, const std::vector<Block>& blocks, int64_t extent) {
  int64_t sum = 0;
  for (const Block& block : blocks) {
    if (block.size < 1) base::fail("parameter '{}': {} block of size {}", name, what, block.size);
    if (block.size > extent - sum) {
      sum = -1;
      break;
    }
    sum += block.size;
  }
  if (!blocks.empty() && sum != extent) {
    base::fail("parameter '{}': {} blocks {} do not sum to {}", name, what, list_text(sizes(blocks)), extent);
  }
}

}  // namespace

MatrixGrid::MatrixGrid(const Parameter& parameter)
    : shape_(parameter.shape),
      view_(parameter.matrices.view.empty() ? parameter.shape : parameter.matrices.view),
      normuon_(parameter.algorithm == Algorithm::kNorMuon),
      norm_axis_(parameter.norm_axis),
      rule_workspace_(parameter.algorithm == Algorithm::kRule ? parameter.rule.workspace_bytes : -1) {
  const MatrixSpec& spec = parameter.matrices;
  for (const int64_t dim : view_) {
    if (dim < 1) {
      base::fail("parameter '{}': view {} has dim {}", parameter.name, list_text(view_), dim);
    }
  }
  if (view_.size() > kMaxDims || !same_elements(view_, shape_)) {
    base::fail("parameter '{}': view {} does not have the elements of shape {}", parameter.name, list_text(view_),
               list_text(shape_));
  }
  if (spec.flatten && view_.size() > 2) view_ = {view_[0], element_count({view_.begin() + 1, view_.end()})};
  if (view_.size() < 2) {
    base::fail("parameter '{}': shape {} has no matrix; use adamw or lion for it, or give it a view", parameter.name,
               list_text(shape_));
  }
  reshaped_ = view_ != shape_;

  const int64_t rows = view_[view_.size() - 2];
  const int64_t columns = view_.back();
  check_blocks(parameter.name, "row", spec.rows, rows);
  check_blocks(parameter.name, "column", spec.columns, columns);
  auto cut = [](const std::vector<Block>& blocks, int64_t extent, std::vector<Cut>& out) {
    int64_t begin = 0;
    for (const Block& block : blocks) {
      out.push_back({begin, block});
      begin += block.size;
    }
    if (blocks.empty()) out.push_back({0, {extent, {}, {}}});
  };
  cut(spec.rows, rows, rows_);
  cut(spec.columns, columns, columns_);

  // Every matrix has an element, so the count cannot overflow 64 bits.
  const int64_t batch = element_count({view_.begin(), view_.end() - 2});
  const int64_t count = batch * static_cast<int64_t>(rows_.size()) * static_cast<int64_t>(columns_.size());
  if (count > std::numeric_limits<int32_t>::max()) {
    base::fail("parameter '{}': {} matrices are more than 2^31 - 1", parameter.name, count);
  }
  count_ = static_cast<int32_t>(count);
  if (reshaped_ && columns_.size() > 1 && count > kMaxRowRuns / rows) {
    base::fail(
        "parameter '{}': column blocks of a view take a run a row, and {} x {} rows are "
        "more than {}",
        parameter.name, count, rows, kMaxRowRuns);
  }
}

MatrixGrid::Place MatrixGrid::place(int32_t index) const {
  const auto columns = static_cast<int32_t>(columns_.size());
  const auto rows = static_cast<int32_t>(rows_.size());
  return {index / columns / rows, rows_[index / columns % rows], columns_[index % columns]};
}

Matrix MatrixGrid::at(int32_t index) const {
  const Place at = place(index);
  Matrix m{at.rows.block.size, at.columns.block.size, normuon_, norm_axis_, rule_workspace_};
  for (const Block* block : {&at.columns.block, &at.rows.block}) {
    m.normuon = block->normuon.value_or(m.normuon);
    m.norm_axis = block->norm_axis.value_or(m.norm_axis);
  }
  if (m.norm_axis == NormAxis::kLonger) m.norm_axis = m.rows >= m.columns ? NormAxis::kRows : NormAxis::kColumns;
  return m;
}

std::vector<layout::Run> MatrixGrid::runs(int32_t index) const {
  const Place at = place(index);
  const int64_t view_rows = view_[view_.size() - 2];
  const int64_t view_columns = view_.back();
  const int64_t rows = at.rows.block.size;
  const int64_t columns = at.columns.block.size;
  const layout::Index strides = layout::row_major_strides(shape_);

  if (!reshaped_) {
    layout::Run run;
    run.box = layout::whole(shape_);
    int64_t rest = at.batch;
    for (size_t d = shape_.size() - 2; d-- > 0;) {
      run.box.begin[d] = rest % shape_[d];
      run.box.end[d] = run.box.begin[d] + 1;
      rest /= shape_[d];
    }
    const size_t d = shape_.size() - 2;
    run.box.begin[d] = at.rows.begin;
    run.box.end[d] = at.rows.begin + rows;
    run.box.begin[d + 1] = at.columns.begin;
    run.box.end[d + 1] = at.columns.begin + columns;
    run.stride[d] = columns;
    run.stride[d + 1] = 1;
    return {run};
  }

  // Whole rows of the view are one flat range of the storage; otherwise each row of the matrix is one.
  std::vector<layout::Run> out;
  const int64_t start = (at.batch * view_rows + at.rows.begin) * view_columns + at.columns.begin;
  const bool whole_rows = columns == view_columns;
  const int64_t length = whole_rows ? rows * columns : columns;
  for (int64_t row = 0; row < (whole_rows ? 1 : rows); ++row) {
    const int64_t begin = start + row * view_columns;
    for (const layout::Box& box : layout::flat_range(shape_, begin, begin + length)) {
      int64_t flat = 0;
      for (int d = 0; d < box.dims; ++d) flat += box.begin[d] * strides[d];
      out.push_back({box, row * columns + flat - begin, strides});
    }
  }
  return out;
}

}  // namespace muster::plan
