#include "muster/problem.h"

#include <cmath>
#include <unordered_map>
#include <unordered_set>

#include <fmt/format.h>

#include "base/limits.h"
#include "base/text.h"
#include "layout/partition.h"
#include "plan/kind_key.h"
#include "plan/matrices.h"

namespace muster {

int64_t byte_size(Dtype dtype) { return dtype == Dtype::kF32 ? 4 : 2; }

namespace {

// Elements of a model, and of all its replicas together. With the lowest rates of a cost table, sums of bytes and of
// nanoseconds then stay within 64 bits.
constexpr int64_t kMaxElements = int64_t{1} << 48;
constexpr int64_t kMaxReplicated = int64_t{1} << 50;
// The size of a plan grows with its matrices, and with the ranks of every kind of parameter.
constexpr int64_t kMaxMatrices = int64_t{1} << 22;
constexpr int64_t kMaxPositions = int64_t{1} << 28;

void validate(const Mesh& mesh, int32_t ranks) {
  std::unordered_set<std::string> names;
  for (const MeshAxis& axis : mesh.axes) {
    if (!names.insert(axis.name).second) {
      base::fail("mesh '{}': axis '{}' is named twice", mesh.name, axis.name);
    }
  }
  const int32_t size = mesh.size();
  if (!mesh.ranks.empty() && static_cast<int64_t>(mesh.ranks.size()) != size) {
    base::fail("mesh '{}': {} ranks for a grid of {} positions", mesh.name, mesh.ranks.size(), size);
  }
  if (mesh.ranks.empty() && size > ranks) {
    base::fail("mesh '{}': {} positions on {} ranks", mesh.name, size, ranks);
  }
  std::unordered_set<int32_t> seen;
  for (const int32_t rank : mesh.ranks) {
    if (rank < 0 || rank >= ranks) {
      base::fail("mesh '{}': rank {} is not one of the {} ranks", mesh.name, rank, ranks);
    }
    if (!seen.insert(rank).second) base::fail("mesh '{}': rank {} is in it twice", mesh.name, rank);
  }
}

// The elements of the parameter.
int64_t check_shape(const Parameter& p) {
  if (p.shape.empty() || p.shape.size() > kMaxDims) {
    base::fail("parameter '{}': {} dims; must be 1 to {}", p.name, p.shape.size(), kMaxDims);
  }
  for (const int64_t dim : p.shape) {
    if (dim < 1) base::fail("parameter '{}': shape {} has dim {}", p.name, base::list_text(p.shape), dim);
  }
  int64_t count = 1;
  for (const int64_t dim : p.shape) {
    if (__builtin_mul_overflow(count, dim, &count) || count > kMaxElements) {
      base::fail("parameter '{}': shape [{}] has more than 2^48 elements", p.name, fmt::join(p.shape, ","));
    }
  }
  return count;
}

void check_rule_blocks(const Parameter& p) {
  for (const std::vector<Block>* const blocks : {&p.matrices.rows, &p.matrices.columns}) {
    for (const Block& block : *blocks) {
      if (block.normuon.value_or(false))
        base::fail("parameter '{}': a block has NorMuon, the parameter a rule", p.name);
    }
  }
}

void check_parameters(const Problem& problem) {
  std::unordered_set<std::string> names;
  int64_t elements = 0;
  int64_t matrices = 0;
  for (const Parameter& p : problem.parameters) {
    if (p.name.empty()) base::fail("a parameter has no name");
    if (!names.insert(p.name).second) base::fail("parameter '{}' is named twice", p.name);
    elements += check_shape(p);
    if (elements > kMaxElements) base::fail("parameter '{}' brings the model past 2^48 elements", p.name);
    if (p.layout.mesh < 0 || p.layout.mesh >= static_cast<int32_t>(problem.meshes.size())) {
      base::fail("parameter '{}': no mesh {}", p.name, p.layout.mesh);
    }
    if (!std::isfinite(p.multiplier)) base::fail("parameter '{}': multiplier {}", p.name, p.multiplier);
    if (p.output_dim != 0 && p.output_dim != 1) {
      base::fail("parameter '{}': output_dim {}; must be 0 or 1", p.name, p.output_dim);
    }
    if (p.rule.workspace_bytes < 0 || p.rule.workspace_bytes > kMaxElements) {
      base::fail("parameter '{}': rule workspace of {} bytes; must be 0 to 2^48", p.name, p.rule.workspace_bytes);
    }
    if (p.algorithm == Algorithm::kRule) check_rule_blocks(p);
    if (is_matrix_algorithm(p.algorithm)) matrices += plan::MatrixGrid(p).count();
    if (matrices > kMaxMatrices) {
      base::fail("parameter '{}' brings the model past {} matrices", p.name, kMaxMatrices);
    }
  }
}

// Layouts repeat from layer to layer; each kind is checked once.
void check_layouts(const Problem& problem) {
  std::unordered_map<std::string, int32_t> replicas_of;
  int64_t replicated = 0;
  int64_t positions = 0;
  for (const Parameter& p : problem.parameters) {
    const auto [kind, is_new] = replicas_of.emplace(plan::kind_key(p), 0);
    if (is_new) {
      const layout::Partition partition(problem.meshes[p.layout.mesh], p.layout, p.shape, p.name);
      kind->second = partition.replicas();
      positions += partition.positions();
    }
    if (problem.grad_sync && kind->second > 1 && p.state_keeper == StateKeeper::kHolders) {
      base::fail("parameter '{}': with grad_sync the owner keeps the state of its {} replicas, not its holders", p.name,
                 kind->second);
    }
    int64_t copies = 0;
    if (__builtin_mul_overflow(element_count(p.shape), int64_t{kind->second}, &copies) ||
        (replicated += copies) > kMaxReplicated) {
      base::fail("parameter '{}' on {} replicas brings the model past 2^50 elements", p.name, kind->second);
    }
    if (positions > kMaxPositions) {
      base::fail("parameter '{}' is one of {} kinds on {} ranks: more than can be planned", p.name, replicas_of.size(),
                 problem.ranks);
    }
  }
}

}  // namespace

void validate(const Problem& problem) {
  if (problem.ranks < 1 || problem.ranks > base::kMaxRanks) {
    base::fail("{} ranks: must be 1 to {}", problem.ranks, base::kMaxRanks);
  }
  std::unordered_set<std::string> names;
  for (const Mesh& mesh : problem.meshes) {
    if (!names.insert(mesh.name).second) base::fail("mesh '{}' is named twice", mesh.name);
    validate(mesh, problem.ranks);
  }
  check_parameters(problem);
  for (const int64_t size : problem.group_sizes) {
    if (size < 1) base::fail("groups: size {}", size);
  }
  check_layouts(problem);
}

}  // namespace muster
