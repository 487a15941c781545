/// \file
/// An update rule of your own, on whole matrices. The engine brings the update of every matrix to one rank, its owner,
/// calls the rule there, and applies the result on all ranks that hold the matrix.
///
///     class Sign : public muster::Rule {
///       std::string name() const override { return "sign"; }
///       void update(const muster::RuleBatch& batch) override {
///         for (float& u : batch.all_updates()) u = u > 0 ? 1.0F : -1.0F;
///       }
///     };
///     problem.parameters[p].algorithm = muster::Algorithm::kRule;
///     options.rules = {std::make_shared<Sign>()};  // one per group
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "muster/group.h"

namespace muster {

/// The shape of an entry of state, for a matrix of rows x columns.
enum class RuleStateShape : uint8_t {
  kRows,              ///< (rows)
  kColumns,           ///< (columns)
  kMatrix,            ///< (rows, columns)
  kRowsByRows,        ///< (rows, rows)
  kColumnsByColumns,  ///< (columns, columns)
};

/// An entry of state that a rule declares. The owner of a matrix keeps one f32 array per entry and matrix. It starts at
/// zero, and belongs to checkpoints as "blocks.0.mlp:rule.NAME".
struct RuleState {
  std::string name;                                ///< letters, digits and underscores; unique in the rule
  RuleStateShape shape = RuleStateShape::kMatrix;  ///< per matrix

  /// Compares all fields.
  bool operator==(const RuleState&) const = default;
};

/// What a rule is called with: matrices of one shape and group, on their owner. Everything is dense, row-major and f32.
struct RuleBatch {
  /// One entry of state, of all matrices of the batch.
  struct State {
    float* data = nullptr;  ///< the first matrix; updated in place
    int64_t stride = 0;     ///< elements from one matrix to the next
  };

  int64_t count = 0;               ///< matrices; 1 unless Rule::batched()
  int64_t rows = 0;                ///< the same for every matrix
  int64_t columns = 0;             ///< the same for every matrix
  float* updates = nullptr;        ///< (count, rows, columns): in, rounded to the wire dtype; the rule replaces them
  std::span<const State> state{};  ///< one per entry of Rule::state(), in its order
  void* workspace = nullptr;       ///< Rule::workspace_bytes(), aligned to a cache line
  const Group& group;              ///< hyperparameters of this step
  int32_t group_index = 0;         ///< index into OptimizerOptions::groups
  int64_t step = 1;                ///< its number, from 1

  /// All updates as one range.
  std::span<float> all_updates() const { return {updates, static_cast<size_t>(count * rows * columns)}; }
};

/// An update rule. Every rank has an object of its own, declared alike. Its result for a matrix may depend on what the
/// batch holds of that matrix, and on nothing else: then weights have the same bits on any number of ranks. A matrix
/// has one owner among all its replicas.
class Rule {
 public:
  virtual ~Rule() = default;
  /// A name for errors.
  virtual std::string name() const = 0;
  /// The state that the engine keeps for it. Always the same.
  virtual std::vector<RuleState> state() const { return {}; }
  /// True: the rule has momentum of its own, and gets the gradients in place of the engine's momentum updates.
  virtual bool own_momentum() const { return false; }
  /// True: update() may get several matrices, and gives each the bits that it would give it alone.
  virtual bool batched() const { return false; }
  /// Bytes of RuleBatch::workspace, which count under the scratch cap. Grows with `count`.
  virtual int64_t workspace_bytes(int64_t rows, int64_t columns, int64_t count) const {
    static_cast<void>(rows);
    static_cast<void>(columns);
    static_cast<void>(count);
    return 0;
  }
  /// Replaces the updates of a batch. Called in the thread that calls Optimizer::step(), or ready() with overlap, and
  /// once per shape in the constructor of Optimizer, with made-up updates and state of zeros.
  ///
  /// If it throws, the step is carried out to its end without this rank's rules, and breaks off on all ranks: this rank
  /// throws the exception, others CommError with its text. Weights are partly updated then: load a state.
  virtual void update(const RuleBatch& batch) = 0;
};

}  // namespace muster
