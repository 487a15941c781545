// What is to be planned: the ranks, the meshes, and every parameter with its layout and its matrices.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "muster/layout.h"

namespace muster {

enum class Dtype : uint8_t { kF32, kBf16, kF16 };
int64_t byte_size(Dtype dtype);

// How a weight is stored. All but the first two keep an f32 value, or round without bias.
enum class WeightForm : uint8_t {
  kF32,
  kBf16,            // rounded to nearest even every step
  kBf16Master,      // extra: the f32 weight; the bf16 one is its rounding, or else was set and counts
  kBf16Mantissa,    // extra: uint16, the low half of an f32 whose high half is the bf16 weight
  kBf16Stochastic,  // rounded up with the probability of the distance, by (seed, step, parameter, global element)
};

enum class Algorithm : uint8_t { kMuon, kNorMuon, kAdamW, kLion };

// Muon and NorMuon work on whole matrices; AdamW and Lion on elements.
inline bool is_matrix_algorithm(Algorithm a) { return a == Algorithm::kMuon || a == Algorithm::kNorMuon; }

// Which mean squares NorMuon keeps: one a row, one a column, or along the longer side (a tie: rows).
enum class NormAxis : uint8_t { kRows, kColumns, kLonger };

// One block of rows or columns of a parameter, with its own NorMuon settings where they differ.
struct Block {
  int64_t size = 0;
  std::optional<bool> normuon;
  std::optional<NormAxis> norm_axis;

  bool operator==(const Block&) const = default;
};

// How a parameter is read as matrices. The shape (or `view`) is (batch..., rows, columns); every batch index and
// every row block times column block is one matrix.
struct MatrixSpec {
  Shape view;                  // read the storage row-major as this shape; empty: the shape itself
  bool flatten = false;        // convolution: dim 0 against all the others
  std::vector<Block> rows;     // cut the rows (fused QKV, gate and up, heads); empty: one block
  std::vector<Block> columns;  // cut the columns (an output projection per head); empty: one block

  bool operator==(const MatrixSpec&) const = default;
};

// Decides which ranks keep momentum, moments and NorMuon's statistics from step to step.
enum class StateKeeper : uint8_t {
  kEngine,   // the engine keeps each element once: with one of the replicas, or with the owner of the matrix
  kHolders,  // every rank keeps the state of the elements that it holds, in memory that the caller gives
};

// Whose shape gives the scale of the step: each matrix's own, or that of the parameter it is a block of.
enum class ScaleShape : uint8_t { kBlock, kParameter };

struct Parameter {
  std::string name;
  Shape shape;
  Dtype dtype = Dtype::kF32;
  Dtype grad_dtype = Dtype::kF32;
  Layout layout;
  Algorithm algorithm = Algorithm::kNorMuon;
  NormAxis norm_axis = NormAxis::kLonger;
  MatrixSpec matrices;                              // ignored by AdamW and Lion
  StateKeeper state_keeper = StateKeeper::kEngine;  // kHolders: not for replicas whose gradients are averaged here
  // The next three steer the size of the step, never the plan.
  int output_dim = 0;  // 0: a matrix is (output, input); 1: stored transposed
  ScaleShape scale_shape = ScaleShape::kBlock;
  double multiplier = 1;  // of the learning rate. Never splits a batch
};

struct Problem {
  std::string model;
  int32_t ranks = 1;
  std::vector<Mesh> meshes;
  std::vector<Parameter> parameters;
  Dtype wire = Dtype::kBf16;  // what updates travel in
  // Muster averages the raw gradients of replicas itself: they travel to the owner, new weights travel back.
  bool grad_sync = false;
  std::vector<int64_t> group_sizes;  // for Strategy::kGrouped, in parameters; empty: one group a kind
};

// NorMuon's statistics of a parameter whose holders keep them: a tensor of shape (batch..., lines), or (lines) where
// `view` or `flatten` reads the parameter in another shape. It is cut over the parameter's mesh: axes that cut a batch
// dimension cut the same one here, in the same way; axes that cut rows or columns cut the lines into chunks, in the
// order of the mesh.
struct StatisticsLayout {
  Shape shape;            // empty: the parameter has none
  Shape local_shape;      // of one rank
  std::vector<int> dims;  // which dimension each mesh axis cuts; -1: none
};
StatisticsLayout statistics_layout(const Problem& problem, int32_t parameter, int32_t rank);

// Throws InvalidArgument, naming the parameter or mesh and the value, unless every layout and every matrix makes sense.
void validate(const Problem& problem);

}  // namespace muster
