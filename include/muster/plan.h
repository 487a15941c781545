// The plan: which rank orthogonalizes which matrix, in which wave, and which rank updates which elements.
//
// Planning is a pure function of its arguments: no communication, clock, randomness or floating point. Every rank
// computes the same plan, and an Optimizer compares the hashes of all ranks.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "muster/cost.h"
#include "muster/problem.h"

namespace muster {

// kGlobal is the planner. The others reproduce the schedules of other systems, for comparison
// (docs/explanation/planning.md).
enum class Strategy : uint8_t { kGlobal, kPerMatrix, kChunked, kGrouped, kMegabatch, kRouted, kLayerwise };

std::string_view name(Strategy strategy);
Strategy parse_strategy(std::string_view name);  // throws InvalidArgument
const std::vector<Strategy>& all_strategies();

// Which matrices are in the first waves. Small ones arrive sooner, so the first computation starts sooner.
enum class WaveOrder : uint8_t { kSmallFirst, kSmallLast };

// In which waves AdamW and Lion update: in every wave, where they fill the time of exchanges; all in the last; or all
// in the first, as the schedules of other systems do. With kInterleaved, kGlobal may choose such a schedule too.
enum class ElementwiseOrder : uint8_t { kInterleaved, kLast, kFirst };

inline constexpr int32_t kAllInFlight = std::numeric_limits<int32_t>::max();

struct PlanOptions {
  Strategy strategy = Strategy::kGlobal;
  int32_t waves = 0;  // 0: chosen by predicted time and scratch_bytes. kGlobal only, as are the next two
  WaveOrder wave_order = WaveOrder::kSmallFirst;
  ElementwiseOrder elementwise = ElementwiseOrder::kInterleaved;
  // How many waves ahead of the one that computes are on their way in, and behind it on their way out; kAllInFlight:
  // all exchanges in are posted before anything is computed. Scratch grows with it. 0: kAllInFlight for kGrouped; for
  // kGlobal by predicted time and scratch_bytes, or 1 with an order; else 1.
  int32_t in_flight = 0;
  // Parameters in the order in which their gradients come, each at most once; parameters that are not listed come last.
  // Waves then follow this order instead of wave_order: 8 waves, or as many more as scratch_bytes requires. kGlobal
  // only. Empty: no order.
  std::vector<int32_t> order{};
  // Parameters per group, in place of Problem::group_sizes. kGrouped only; empty: those.
  std::vector<int64_t> groups{};
  // A rank may own parameters of several kinds in one group, and orthogonalizes them kind by kind. kGrouped only.
  bool mixed_groups = false;
  int64_t scratch_bytes = 1 << 30;  // the most scratch per rank; 0: no limit. kGlobal only
  CostTable cost = CostTable::h200();
};

// How the matrices of a wave travel to the ranks that orthogonalize them, and back.
enum class Transport : uint8_t {
  kRagged,        // to the owner and back, without padding
  kPadded,        // the same, with every shard padded to the largest and zero matrices for ranks without one
  kGather,        // to every holder; each orthogonalizes for itself, so nothing returns
  kGatherReduce,  // to every holder; the owner orthogonalizes, the others add zeros in a reduce-scatter
};

// Padding: a matrix of zeros that is sent and orthogonalized like a real one.
struct ZeroMatrix {
  int32_t like = 0;  // index of a real matrix of the same shape and layout
  int32_t owner = 0;
};

// Matrices that travel in one exchange in and one exchange out.
struct Wave {
  Transport transport = Transport::kRagged;
  std::vector<ZeroMatrix> zeros;
};

// How replicas divide the update of elementwise parameters (AdamW, Lion). The parameters of a family are laid end to
// end; of the elements that `ranks` all hold, ranks[i] updates those from cuts[i] to cuts[i + 1].
struct ElementShare {
  int32_t family = 0;  // index into Plan::families
  std::vector<int32_t> ranks;
  std::vector<int64_t> cuts;
};

struct Plan {
  Strategy strategy = Strategy::kGlobal;
  WaveOrder wave_order = WaveOrder::kSmallFirst;
  ElementwiseOrder elementwise = ElementwiseOrder::kInterleaved;
  // Both have one entry per matrix, in the order of parameter, batch index, row block, column block.
  std::vector<int32_t> owner;
  std::vector<int32_t> wave;
  // True for a matrix that every replica orthogonalizes for itself, so that nothing of it travels between replicas:
  // `owner` in its own replica, the rank at the same position in each other. Empty: no matrix.
  std::vector<bool> each_replica;
  std::vector<Wave> waves;
  // While wave w computes, waves up to w + in_flight arrive and those from w - in_flight on leave: at least 1, at most
  // what the number of waves allows.
  int32_t in_flight = 1;
  std::vector<std::vector<int32_t>> families;  // indices of parameters
  std::vector<ElementShare> shares;
  uint64_t hash = 0;  // of the problem, the cost table, the version and all of the above
};

// Throws InvalidArgument for a bad problem, cost table or option, and if no number of waves meets scratch_bytes.
Plan make_plan(const Problem& problem, const PlanOptions& options);

// The predicted cost of a plan. Times are in nanoseconds. Bytes are those that travel between ranks in a step, to
// owners and back.
struct PlanSummary {
  struct Rank {
    int64_t compute_ns = 0;   // orthogonalization, NorMuon, elementwise
    int64_t exchange_ns = 0;  // for bytes sent and received, and for messages
    int64_t bytes_sent = 0;
    int64_t bytes_received = 0;
    int64_t messages_sent = 0;
    int64_t scratch_bytes = 0;  // most that an engine allocates besides state: arena and workspace
    int32_t matrices = 0;       // owned, zero matrices included
    int64_t elements = 0;       // of replicated elementwise parameters, updated by this rank for all replicas
    int64_t total_ns() const { return compute_ns + exchange_ns; }
  };
  struct WaveTotal {
    int32_t matrices = 0;
    int32_t zeros = 0;
    int32_t owners = 0;
    int32_t collectives = 0;  // exchanges in which any byte moves between ranks
    int64_t bytes_in = 0;
    int64_t bytes_out = 0;
    int64_t padding_bytes = 0;
    int64_t in_ns = 0;  // of the slowest rank; so are the next two
    int64_t compute_ns = 0;
    int64_t out_ns = 0;
  };
  std::vector<Rank> ranks;
  std::vector<WaveTotal> waves;
  int64_t collectives = 0;
  int64_t rounds = 0;
  int64_t bytes_sent_max = 0;
  int64_t bytes_sent_total = 0;
  int64_t padding_bytes = 0;
  int64_t scratch_bytes_max = 0;
  int64_t slowest_ns = 0;         // the slowest rank
  int64_t mean_ns = 0;            // the mean of all ranks
  int64_t largest_matrix_ns = 0;  // the largest matrix, at its owner
  int64_t predicted_ns = 0;       // the step, with exchanges and computation of different waves overlapping

  double imbalance() const;   // slowest / mean
  double over_bound() const;  // slowest / max(mean, largest matrix)
};

PlanSummary summarize(const Problem& problem, const Plan& plan, const CostTable& cost);

}  // namespace muster
