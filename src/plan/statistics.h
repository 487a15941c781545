// Where NorMuon's statistics of a parameter are, if the ranks that hold it keep them (StateKeeper::kHolders).
//
// The statistics of all matrices of a parameter form one tensor, (batch..., lines), cut over the mesh of the parameter
// (muster::StatisticsLayout). They travel to the owner of their matrix and back with its elements, so that no rank
// keeps anything that is not its own.
#pragma once

#include <cstdint>
#include <vector>

#include "layout/partition.h"
#include "muster/problem.h"
#include "plan/matrices.h"

namespace muster::plan {

class Statistics {
 public:
  // The mesh is kept by reference. The parameter has NorMuon matrices.
  Statistics(const Mesh& mesh, const Parameter& parameter, const MatrixGrid& grid);

  const Shape& shape() const { return partition_.shape(); }
  const std::vector<int>& dims() const { return dims_; }
  const layout::Partition& partition() const { return partition_; }

  // Lines of a matrix in the memory of one holder.
  struct Part {
    int32_t position = 0;  // on the mesh
    int64_t held = 0;      // element of the holder's statistics
    int64_t line = 0;      // of the matrix
    int64_t count = 0;
  };
  // All of them, of every replica, ascending by position. None if the matrix has no statistics.
  std::vector<Part> parts(int32_t matrix) const;
  // Those of one holder; at most one, because lines are contiguous. Count 0: none.
  Part part_of(int32_t matrix, int32_t position) const;
  // Whether a holder has all lines of a matrix.
  bool has_all(int32_t matrix, int32_t position) const;

  int64_t total() const { return total_; }
  // The place of a matrix's first line in the row-major tensor.
  int64_t first_line(int32_t matrix) const { return begin_[matrix]; }

 private:
  Statistics(const Mesh& mesh, const Parameter& parameter, const MatrixGrid& grid, Layout layout);
  layout::Box box(int32_t matrix) const;

  std::vector<int64_t> begin_;  // per matrix, and the end of the last
  int64_t total_ = 0;
  std::vector<int> dims_;
  layout::Partition partition_;
};

// Whether a parameter has statistics that its holders keep.
bool holders_keep_statistics(const Parameter& parameter, const MatrixGrid& grid);

}  // namespace muster::plan
