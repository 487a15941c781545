// The matrices of one parameter: their shapes and which elements they are made of.
#pragma once

#include <cstdint>
#include <vector>

#include "layout/run.h"
#include "muster/problem.h"

namespace muster::plan {

struct Matrix {
  int64_t rows = 0;
  int64_t columns = 0;
  bool normuon = false;
  NormAxis norm_axis = NormAxis::kRows;  // resolved: rows or columns
  int64_t rule_workspace = -1;           // bytes that its rule needs; -1: it has no rule

  bool rule() const { return rule_workspace >= 0; }
  int64_t elements() const { return rows * columns; }
  int64_t lines() const { return norm_axis == NormAxis::kRows ? rows : columns; }  // of NorMuon's statistics
};

class MatrixGrid {
 public:
  // Throws InvalidArgument where view or blocks do not fit the shape.
  explicit MatrixGrid(const Parameter& parameter);

  // Batch index, then row block, then column block, the last varying fastest.
  int32_t count() const { return count_; }
  Matrix at(int32_t index) const;
  // The elements of a matrix in the parameter's index space, with their offsets in the row-major matrix.
  std::vector<layout::Run> runs(int32_t index) const;

 private:
  struct Cut {
    int64_t begin;
    Block block;
  };
  struct Place {
    int64_t batch;
    const Cut& rows;
    const Cut& columns;
  };
  Place place(int32_t index) const;

  Shape shape_;
  Shape view_;
  bool reshaped_ = false;
  bool normuon_ = false;
  NormAxis norm_axis_ = NormAxis::kLonger;
  int64_t rule_workspace_ = -1;
  std::vector<Cut> rows_;
  std::vector<Cut> columns_;
  int32_t count_ = 0;
};

}  // namespace muster::plan
