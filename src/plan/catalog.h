// Every matrix of a problem, which ranks hold how much of it, and which matrices are alike.
//
// Layers repeat, so a model has few kinds of parameters and few classes of matrices. Expensive work is done once per
// class: 61,440 expert matrices on 2048 ranks are 2 classes of 2048 holders, not 126 million pieces.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "layout/partition.h"
#include "muster/problem.h"
#include "plan/matrices.h"
#include "plan/normuon_statistics.h"

namespace muster::plan {

struct Holder {
  int32_t rank = 0;
  int32_t position = 0;  // on the mesh of the parameter
  int32_t replica = 0;
  int64_t elements = 0;

  bool operator==(const Holder&) const = default;
};

// The ranks that hold some of a matrix, ascending. Each replica of it is spread over a part of them.
struct HolderSet {
  std::vector<Holder> holders;
  int32_t replicas = 1;
  int32_t peers = 0;                // equal for sets of the same ranks
  int64_t largest = 0;              // elements of the holder with the most
  std::vector<int32_t> by_replica;  // ranks, replica after replica, ascending in each; empty if there is one

  const Holder* find(int32_t rank) const;
  // Ranks that hold some of one replica.
  int32_t of_replica() const { return static_cast<int32_t>(holders.size()) / replicas; }
  // The rank that stands in `replica` where `rank`, a holder, stands in its own.
  int32_t counterpart(int32_t rank, int32_t replica) const;
  // True if nothing travels: the owner is the only holder, of the matrix or in each replica.
  bool stays_home(int32_t owner, bool each_replica) const;
  // The replica whose pieces an owner gathers, unless every replica sends: its own, or if it holds nothing, any.
  int32_t source_replica(int32_t owner) const;
};

// A set of distributions over the ranks, one bit each. Kinds share a bit if the same ranks hold the same of them.
using Distributions = uint32_t;

// Matrices that cost the same wherever they go.
struct MatrixClass {
  Matrix matrix;
  int32_t holder_set = 0;
  // The ranks that keep NorMuon's statistics, as a holder set whose `elements` are lines. -1: no holder keeps them.
  int32_t line_set = -1;
  bool lines_elsewhere = false;     // some rank keeps statistics of a matrix and holds no element of it
  int32_t shape = 0;                // equal for matrices that are orthogonalized in one batch
  int64_t in_bytes = 0;             // of one element on its way to the owner
  int64_t out_bytes = 0;            // of one element on its way back
  bool all_replicas = false;        // every replica sends its raw gradient (grad_sync)
  bool each_momentum = false;       // every replica keeps momentum, whichever of them sends
  bool weights_back = false;        // the owner holds the matrix whole and returns new weights, not updates
  Distributions distributions = 0;  // of the kinds that it is part of
};

class Catalog {
 public:
  explicit Catalog(const Problem& problem);  // a valid one; kept by reference

  const Problem& problem() const { return problem_; }

  int32_t matrix_count() const { return static_cast<int32_t>(class_of_.size()); }
  int32_t class_of(int32_t matrix) const { return class_of_[matrix]; }
  int32_t parameter_of(int32_t matrix) const { return parameter_of_[matrix]; }
  int32_t first_matrix(int32_t parameter) const { return first_matrix_[parameter]; }
  int32_t index_in_parameter(int32_t matrix) const { return matrix - first_matrix_[parameter_of_[matrix]]; }
  int64_t rows(int32_t matrix) const { return class_at(matrix).matrix.rows; }
  int64_t columns(int32_t matrix) const { return class_at(matrix).matrix.columns; }

  const std::vector<MatrixClass>& classes() const { return classes_; }
  const MatrixClass& class_at(int32_t matrix) const { return classes_[class_of_[matrix]]; }
  const HolderSet& holder_set(const MatrixClass& c) const { return holder_sets_[c.holder_set]; }
  const HolderSet& holders_of(int32_t matrix) const { return holder_set(class_at(matrix)); }
  const HolderSet& holders_of_class(int32_t c) const { return holder_set(classes_[c]); }
  int32_t holder_set_count() const { return static_cast<int32_t>(holder_sets_.size()); }
  const HolderSet& holder_set_at(int32_t index) const { return holder_sets_[index]; }

  // Equal for parameters that are cut alike, matrices included.
  int32_t kind_of(int32_t parameter) const { return kind_of_[parameter]; }

  const layout::Partition& partition(int32_t parameter) const { return kinds_[kind_of_[parameter]].partition; }
  const MatrixGrid& grid(int32_t parameter) const { return *kinds_[kind_of_[parameter]].grid; }
  // Null unless the holders of the parameter keep NorMuon's statistics.
  const NormuonStatistics* statistics(int32_t parameter) const {
    const auto& found = kinds_[kind_of_[parameter]].statistics;
    return found ? &*found : nullptr;
  }
  // Null unless the holders of a matrix keep its statistics.
  const HolderSet* line_set(const MatrixClass& c) const { return c.line_set < 0 ? nullptr : &holder_sets_[c.line_set]; }
  // Whether each rank updates all that it holds of an elementwise parameter; else replicas share the work.
  bool updated_in_place(int32_t parameter) const {
    return partition(parameter).replicas() == 1 || problem_.parameters[parameter].state_keeper == StateKeeper::kHolders;
  }

  Distributions distribution(int32_t parameter) const { return kinds_[kind_of_[parameter]].distribution; }
  // True if any two ranks that hold the same shard of one of `these` hold the same of all `others`: a rank that sends
  // both of them all that they hold of these and others sends both the same.
  bool replicas_alike(Distributions these, Distributions others) const;

 private:
  struct Kind {
    layout::Partition partition;
    std::optional<MatrixGrid> grid;  // none for elementwise parameters
    std::optional<NormuonStatistics> statistics;
    std::vector<int32_t> classes;    // of each matrix
    Distributions distribution = 0;  // a bit; none for what never travels, or if nothing has replicas
  };
  friend class CatalogBuilder;

  const Problem& problem_;
  std::vector<Kind> kinds_;
  std::vector<int32_t> kind_of_;
  std::vector<int32_t> first_matrix_;
  std::vector<int32_t> class_of_;
  std::vector<int32_t> parameter_of_;
  std::vector<MatrixClass> classes_;
  std::vector<HolderSet> holder_sets_;
  std::vector<Distributions> alike_;  // by bit, those for which replicas_alike
};

// One parameter of each kind among these, and how many of the kind there are.
struct KindCount {
  int32_t example = 0;
  int64_t number = 0;
};
std::vector<KindCount> count_kinds(const Catalog& catalog, const std::vector<int32_t>& parameters);

}  // namespace muster::plan
