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

class NormuonStatistics {
 public:
  // The mesh is kept by reference. The parameter has NorMuon matrices.
  NormuonStatistics(const Mesh& mesh, const Parameter& parameter, const MatrixGrid& grid);

  const Shape& shape() const { return partition_.shape(); }
  const std::vector<int>& dims() const { return dims_; }
  const layout::Partition& partition() const { return partition_; }

  // Lines of a matrix in the memory of one holder.
  struct Part {
    int64_t held = 0;  // element of the holder's statistics
    int64_t line = 0;  // of the matrix
    int64_t count = 0;
  };
  // At most one part, because lines are contiguous. Count 0: the holder has none.
  Part part_of(int32_t matrix, int32_t position) const;

  // The positions that have lines of a matrix, and how many, in any order.
  struct Keeper {
    int32_t position = 0;
    int64_t lines = 0;
  };
  std::vector<Keeper> keepers(int32_t matrix) const;
  // Equal for matrices with the same keepers.
  std::vector<int64_t> keepers_key(int32_t matrix) const;

 private:
  NormuonStatistics(const Mesh& mesh, const Parameter& parameter, std::vector<int64_t> begin);
  layout::Box box(int32_t matrix) const;
  int32_t piece_at(int dim, int64_t index) const;  // the piece of a dimension that an index is in

  std::vector<int64_t> begin_;  // per matrix its first line in the row-major tensor, and the end of the last
  std::vector<int> dims_;
  layout::Partition partition_;
};

// Whether a parameter has statistics that its holders keep.
bool holders_keep_statistics(const Parameter& parameter, const MatrixGrid& grid);

}  // namespace muster::plan
