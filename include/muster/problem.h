// The input of the planner: the ranks, the meshes, and every parameter with its layout and its matrices.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "muster/layout.h"

namespace muster {

enum class Dtype : uint8_t { kF32, kBf16, kF16 };
int64_t byte_size(Dtype dtype);

// How a weight is stored. `extra` is the second piece of memory that the caller gives for it (ParameterMemory::extra).
enum class WeightForm : uint8_t {
  kF32,
  kBf16,          // rounded to nearest even in every step
  kBf16Master,    // extra: the f32 weight. A bf16 weight that is not its rounding was set by the caller and replaces it
  kBf16Mantissa,  // extra: uint16, the low half of an f32 weight whose high half is the bf16 weight
  kBf16Stochastic,  // rounded without bias; the random bits depend on (seed, step, parameter, global element)
};

enum class Algorithm : uint8_t { kMuon, kNorMuon, kAdamW, kLion };

// Muon and NorMuon work on whole matrices; AdamW and Lion on elements.
inline bool is_matrix_algorithm(Algorithm a) { return a == Algorithm::kMuon || a == Algorithm::kNorMuon; }

// Which mean squares NorMuon keeps: one per row, one per column, or one per line of the longer side (a tie: rows).
enum class NormAxis : uint8_t { kRows, kColumns, kLonger };

// One block of rows or columns of a parameter, with its own NorMuon settings where they differ.
struct Block {
  int64_t size = 0;
  std::optional<bool> normuon{};
  std::optional<NormAxis> norm_axis{};

  bool operator==(const Block&) const = default;
};

// How a parameter is read as matrices. Its shape, or `view`, is (batch..., rows, columns). Every combination of batch
// index, row block and column block is one matrix.
struct MatrixSpec {
  Shape view{};                  // the storage is read row-major as this shape; empty: the shape of the parameter
  bool flatten = false;          // a convolution: rows are dimension 0, columns all the others
  std::vector<Block> rows{};     // the rows are cut into these (fused QKV, gate and up, heads); empty: one block
  std::vector<Block> columns{};  // the columns are cut into these (an output projection per head); empty: one block

  bool operator==(const MatrixSpec&) const = default;
};

// Decides which ranks keep momentum, moments and NorMuon's statistics from step to step.
enum class StateKeeper : uint8_t {
  kEngine,   // the engine keeps each element once: with one of the replicas, or with the owner of the matrix
  kHolders,  // every rank keeps the state of the elements that it holds, in memory that the caller gives
};

// Which shape gives the scale of the step: that of each matrix, or that of the parameter it is a block of.
enum class ScaleShape : uint8_t { kBlock, kParameter };

// A tensor that is trained.
struct Parameter {
  std::string name{};
  Shape shape{};
  Dtype dtype = Dtype::kF32;
  Dtype grad_dtype = Dtype::kF32;
  Layout layout{};
  Algorithm algorithm = Algorithm::kNorMuon;
  NormAxis norm_axis = NormAxis::kLonger;
  MatrixSpec matrices{};                            // ignored by AdamW and Lion
  StateKeeper state_keeper = StateKeeper::kEngine;  // kHolders: not for replicas under Problem::grad_sync
  // The next three change the size of the step, and never the plan.
  int output_dim = 0;  // 0: a matrix is (output, input); 1: stored transposed
  ScaleShape scale_shape = ScaleShape::kBlock;
  double multiplier = 1;  // times the learning rate; matrices with different ones are still orthogonalized in one batch
};

struct Problem {
  std::string model{};
  int32_t ranks = 1;
  std::vector<Mesh> meshes{};
  std::vector<Parameter> parameters{};
  Dtype wire = Dtype::kBf16;  // updates are rounded to it and travel in it
  // Muster averages the gradients of replicas: raw gradients travel to the owner, new weights travel back.
  bool grad_sync = false;
  std::vector<int64_t> group_sizes{};  // for Strategy::kGrouped: parameters per group; empty: one group per kind
};

// The layout of NorMuon's mean squares where holders keep the state of a parameter: a tensor of shape (batch...,
// lines), or (lines) if `view` or `flatten` changes the parameter's shape. It is cut over the parameter's mesh. Axes
// that cut a batch dimension cut the same dimension here, in the same way; axes that cut rows or columns cut the lines
// into chunks, in the order of the mesh.
struct StatisticsLayout {
  Shape shape{};          // empty: the parameter has none
  Shape local_shape;      // of this rank
  std::vector<int> dims;  // per mesh axis, the dimension that it cuts; -1: none
};
// Not collective. Throws InvalidArgument.
StatisticsLayout statistics_layout(const Problem& problem, int32_t parameter, int32_t rank);

// Throws InvalidArgument that names the parameter or mesh and the value, unless all layouts and matrices are
// consistent.
void validate(const Problem& problem);

}  // namespace muster
