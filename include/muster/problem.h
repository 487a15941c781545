/// \file
/// The input of the planner: the ranks, the meshes, and every parameter with its layout and its matrices.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "muster/layout.h"

namespace muster {

/// Types of weights, gradients, momentum and messages.
enum class Dtype : uint8_t {
  kF32,   ///< 32-bit float
  kBf16,  ///< bfloat16
  kF16,   ///< IEEE half
};
/// Bytes per element.
int64_t byte_size(Dtype dtype);

/// How a weight is stored. `extra` is the second piece of memory that the caller gives for it (ParameterMemory::extra).
enum class WeightForm : uint8_t {
  kF32,   ///< f32
  kBf16,  ///< bf16, rounded to nearest even in every step
  /// bf16; extra: the f32 weight. A bf16 weight that is not its rounding was set by the caller and replaces it.
  kBf16Master,
  kBf16Mantissa,    ///< bf16; extra: uint16, the low half of an f32 weight whose high half is the bf16 weight
  kBf16Stochastic,  ///< bf16, rounded without bias; the random bits depend on (seed, step, parameter, global element)
};

/// How a parameter is updated.
enum class Algorithm : uint8_t {
  kMuon,     ///< momentum, orthogonalized as whole matrices
  kNorMuon,  ///< Muon, and each row or column divided by the root of its mean square over time
  kAdamW,    ///< Adam with decoupled weight decay
  kLion,     ///< the sign of the momentum, with decoupled weight decay
  kRule,     ///< momentum, and then the caller's Rule (muster/rule.h) on whole matrices; on the CPU
};

/// True for Muon, NorMuon and rules, which work on whole matrices; AdamW and Lion work on elements.
inline bool is_matrix_algorithm(Algorithm a) {
  return a == Algorithm::kMuon || a == Algorithm::kNorMuon || a == Algorithm::kRule;
}

/// Which mean squares NorMuon keeps.
enum class NormAxis : uint8_t {
  kRows,     ///< one per row
  kColumns,  ///< one per column
  kLonger,   ///< one per line of the longer side; a tie: rows
};

/// One block of rows or columns of a parameter, with its own NorMuon settings where they differ.
struct Block {
  int64_t size = 0;                     ///< rows or columns
  std::optional<bool> normuon{};        ///< false: Muon for this block; true: NorMuon; none: the parameter's algorithm
  std::optional<NormAxis> norm_axis{};  ///< none: the parameter's

  /// Compares all fields.
  bool operator==(const Block&) const = default;
};

/// How a parameter is read as matrices. Its shape, or `view`, is (batch..., rows, columns). Every combination of batch
/// index, row block and column block is one matrix.
struct MatrixSpec {
  Shape view{};                  ///< the storage is read row-major as this shape; empty: the shape of the parameter
  bool flatten = false;          ///< a convolution: rows are dimension 0, columns all the others
  std::vector<Block> rows{};     ///< the rows are cut into these (fused QKV, gate and up, heads); empty: one block
  std::vector<Block> columns{};  ///< the columns are cut into these (an output projection per head); empty: one block

  /// Compares all fields.
  bool operator==(const MatrixSpec&) const = default;
};

/// Decides which ranks keep momentum, moments and NorMuon's statistics from step to step.
enum class StateKeeper : uint8_t {
  kEngine,   ///< the engine keeps each element once: with one of the replicas, or with the owner of the matrix
  kHolders,  ///< every rank keeps the state of the elements that it holds, in memory that the caller gives
};

/// Which shape gives the scale of the step.
enum class ScaleShape : uint8_t {
  kBlock,      ///< that of each matrix
  kParameter,  ///< that of the parameter that the matrix is a block of
};

/// What a plan depends on of a parameter's Rule (Algorithm::kRule). The optimizer fills it in from the rule.
struct RuleNeeds {
  int64_t workspace_bytes = 0;  ///< the most that the rule declares for one matrix
  bool momentum = true;         ///< false: the rule has momentum of its own

  /// Compares all fields.
  bool operator==(const RuleNeeds&) const = default;
};

/// A tensor that is trained.
struct Parameter {
  std::string name{};                         ///< unique in the problem; names appear in errors and checkpoints
  Shape shape{};                              ///< shape of the whole tensor; every dimension is at least 1
  Dtype dtype = Dtype::kF32;                  ///< type of the weights
  Dtype grad_dtype = Dtype::kF32;             ///< type of the gradients
  Layout layout{};                            ///< which rank holds which elements
  Algorithm algorithm = Algorithm::kNorMuon;  ///< how it is updated
  NormAxis norm_axis = NormAxis::kLonger;     ///< NorMuon only
  MatrixSpec matrices{};                      ///< ignored by AdamW and Lion
  RuleNeeds rule{};                           ///< rules only
  /// Who keeps its state. kHolders: not for replicas under Problem::grad_sync.
  StateKeeper state_keeper = StateKeeper::kEngine;
  /// 0: a matrix is (output, input); 1: stored transposed. Changes the size of the step, never the plan.
  int output_dim = 0;
  /// Which shape gives the scale of the step. Never changes the plan.
  ScaleShape scale_shape = ScaleShape::kBlock;
  /// Times the learning rate; matrices with different ones are still orthogonalized in one batch. Never changes the
  /// plan.
  double multiplier = 1;
};

/// All that a plan is made for. Every rank gives the same.
struct Problem {
  std::string model{};                  ///< a name, for reports
  int32_t ranks = 1;                    ///< how many ranks the communicator has
  std::vector<Mesh> meshes{};           ///< that layouts refer to by index
  std::vector<Parameter> parameters{};  ///< in the order that memory, gradients and statistics use
  Dtype wire = Dtype::kBf16;  ///< updates are rounded to it and travel in it; on one rank they are rounded too
  /// Muster averages the gradients of replicas: raw gradients travel to the owner, new weights travel back.
  bool grad_sync = false;
  std::vector<int64_t> group_sizes{};  ///< for Strategy::kGrouped: parameters per group; empty: one group per kind
};

/// True unless the parameter's rule has momentum of its own; for matrix algorithms.
inline bool keeps_momentum(const Parameter& parameter) {
  return parameter.algorithm != Algorithm::kRule || parameter.rule.momentum;
}

/// The layout of NorMuon's mean squares where holders keep the state of a parameter: a tensor of shape (batch...,
/// lines), or (lines) if `view` or `flatten` changes the parameter's shape. It is cut over the parameter's mesh. Axes
/// that cut a batch dimension cut the same dimension here, in the same way; axes that cut rows or columns cut the lines
/// into chunks, in the order of the mesh.
struct StatisticsLayout {
  Shape shape{};          ///< shape of the whole tensor; empty: the parameter has none
  Shape local_shape;      ///< shape of this rank's part
  std::vector<int> dims;  ///< per mesh axis, the dimension that it cuts; -1: none
};
/// The layout for `rank` of the mean squares of `parameter`, an index into Problem::parameters. Not collective. Throws
/// InvalidArgument.
StatisticsLayout statistics_layout(const Problem& problem, int32_t parameter, int32_t rank);

/// Throws InvalidArgument that names the parameter or mesh and the value, unless all layouts and matrices are
/// consistent.
void validate(const Problem& problem);

}  // namespace muster
