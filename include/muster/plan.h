/// \file
/// The plan: which rank orthogonalizes which matrix, in which wave, and which rank updates which elements.
///
/// Planning is a pure function of its arguments: no communication, clock, randomness or floating point. Every rank
/// computes the same plan, and an Optimizer compares the hashes of all ranks. No function of this header is collective.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "muster/cost.h"
#include "muster/problem.h"

namespace muster {

/// How plans are built. kGlobal is the planner. The others reproduce the schedules of other systems, for comparison
/// (docs/explanation/planning.md).
enum class Strategy : uint8_t {
  kGlobal,     ///< one owner per matrix, chosen to minimize the predicted time of the slowest rank
  kPerMatrix,  ///< one exchange per matrix
  kChunked,    ///< rounds of as many equal-shape matrices as ranks, the last padded with zero matrices
  kGrouped,    ///< groups of whole parameters, of sizes that the user gives, padded
  kMegabatch,  ///< one round per shape, layout and dtype, padded
  kRouted,     ///< a path per parameter, chosen by its layout and sizes
  kLayerwise,  ///< whole parameters per rank, as in ZeRO-1
};

/// The name of a strategy: global, per_matrix, chunked, grouped, megabatch, routed or layerwise.
std::string_view name(Strategy strategy);
/// The strategy of that name. Throws InvalidArgument that lists the names.
Strategy parse_strategy(std::string_view name);
/// Every strategy, kGlobal first.
const std::vector<Strategy>& all_strategies();

/// Which matrices are in the first waves.
enum class WaveOrder : uint8_t {
  kSmallFirst,  ///< small ones: they arrive sooner, so the first computation starts sooner
  kSmallLast,   ///< large ones
};

/// In which waves AdamW and Lion update. With kInterleaved, kGlobal may choose another order too.
enum class ElementwiseOrder : uint8_t {
  kInterleaved,  ///< in every wave, where they fill the time of exchanges
  kLast,         ///< all in the last wave
  kFirst,        ///< all in the first wave, as the schedules of other systems do
};

/// The scratch cap of make_plan() where none is given and the model does not need more: 1 GiB.
inline constexpr int64_t kDefaultScratchBytes = int64_t{1} << 30;

/// PlanOptions::in_flight: all exchanges in are posted before anything is computed.
inline constexpr int32_t kAllInFlight = std::numeric_limits<int32_t>::max();

/// What make_plan() may choose from.
struct PlanOptions {
  Strategy strategy = Strategy::kGlobal;          ///< how the plan is built
  int32_t waves = 0;                              ///< kGlobal: 0: chosen by predicted time and scratch_bytes
  WaveOrder wave_order = WaveOrder::kSmallFirst;  ///< kGlobal: which matrices come first
  ElementwiseOrder elementwise = ElementwiseOrder::kInterleaved;  ///< kGlobal: when AdamW and Lion update
  /// How many waves arrive ahead of the one that computes, and leave behind it, or kAllInFlight. Scratch grows with it.
  /// 0: kAllInFlight for kGrouped; for kGlobal chosen by predicted time and scratch_bytes, or 1 with an order; else 1.
  int32_t in_flight = 0;
  /// kGlobal: parameters in the order in which their gradients come, each at most once; parameters that are not listed
  /// come last. Waves then follow this order instead of wave_order: 8 waves, or as many more as scratch_bytes requires.
  /// Empty: no order.
  std::vector<int32_t> order{};
  /// kGrouped: the number of parameters of each group, in place of Problem::group_sizes. Empty: those.
  std::vector<int64_t> groups{};
  /// kGrouped: true if a rank may own parameters of several kinds in one group; it orthogonalizes them kind by kind.
  bool mixed_groups = false;
  /// kGlobal: the most scratch per rank; 0: no limit. Empty: kDefaultScratchBytes, or 1.5 times the least that the
  /// model needs if that least is more.
  std::optional<int64_t> scratch_bytes{};
  CostTable cost = CostTable::h200();  ///< describes the device that the ranks compute on
};

/// How the matrices of a wave travel to the ranks that orthogonalize them, and back.
enum class Transport : uint8_t {
  kRagged,        ///< to the owner and back, without padding
  kPadded,        ///< the same, with every shard padded to the largest and zero matrices for ranks without one
  kGather,        ///< to every holder; each orthogonalizes for itself, so nothing returns
  kGatherReduce,  ///< to every holder; the owner orthogonalizes, the others add zeros in a reduce-scatter
};

/// Padding: a matrix of zeros that is sent and orthogonalized like a real one.
struct ZeroMatrix {
  int32_t like = 0;   ///< index of a real matrix of the same shape and layout
  int32_t owner = 0;  ///< the rank that orthogonalizes it
};

/// Matrices that travel in one exchange in and one exchange out.
struct Wave {
  Transport transport = Transport::kRagged;  ///< how all its matrices travel
  std::vector<ZeroMatrix> zeros;             ///< its padding
};

/// How replicas divide the update of elementwise parameters (AdamW, Lion). The parameters of a family are laid end to
/// end; of the elements that `ranks` all hold, ranks[i] updates those from cuts[i] to cuts[i + 1].
struct ElementShare {
  int32_t family = 0;          ///< index into Plan::families
  std::vector<int32_t> ranks;  ///< replicas of each other
  std::vector<int64_t> cuts;   ///< ascending; one more than ranks
};

/// What every rank does in a step.
struct Plan {
  Strategy strategy = Strategy::kGlobal;                          ///< how it was built
  WaveOrder wave_order = WaveOrder::kSmallFirst;                  ///< which matrices are in the first waves
  ElementwiseOrder elementwise = ElementwiseOrder::kInterleaved;  ///< when AdamW and Lion update
  /// The rank that orthogonalizes each matrix, in the order of parameter, batch index, row block, column block.
  std::vector<int32_t> owner;
  /// The wave of each matrix, in the same order.
  std::vector<int32_t> wave;
  /// True for a matrix that every replica orthogonalizes for itself, so that nothing of it travels between replicas:
  /// `owner` in its own replica, the rank at the same position in each other. Empty: no matrix.
  std::vector<bool> each_replica;
  std::vector<Wave> waves;  ///< in the order of the step
  /// While wave w computes, waves up to w + in_flight arrive and those from w - in_flight on leave: at least 1, at most
  /// one less than there are waves, or 1.
  int32_t in_flight = 1;
  std::vector<std::vector<int32_t>> families;  ///< elementwise parameters on the same ranks, as indices of parameters
  std::vector<ElementShare> shares;            ///< who updates the elements of each family
  int64_t scratch_cap = 0;                     ///< bytes per rank, which kGlobal keeps; 0: none
  bool scratch_cap_raised = false;  ///< true if no cap was given and the model needs more than kDefaultScratchBytes
  uint64_t hash = 0;  ///< covers the problem, the cost table, the version and what is above, but not scratch_cap_raised
};

/// Makes the plan. Throws InvalidArgument for a bad problem, cost table or option. If no number of waves meets a
/// scratch_bytes that was given, the code is kScratchCapTooSmall, and the text says the least that works.
Plan make_plan(const Problem& problem, const PlanOptions& options);

/// The predicted cost of a plan. Times are in nanoseconds. Bytes are those that travel between ranks in a step, to
/// owners and back.
struct PlanSummary {
  /// What one rank does in a step.
  struct Rank {
    int64_t compute_ns = 0;      ///< orthogonalization, NorMuon, elementwise
    int64_t exchange_ns = 0;     ///< for bytes sent and received, and for messages
    int64_t bytes_sent = 0;      ///< to other ranks
    int64_t bytes_received = 0;  ///< from other ranks
    int64_t messages_sent = 0;   ///< to other ranks
    int64_t scratch_bytes = 0;   ///< most that an engine allocates besides state: arena and workspace
    int32_t matrices = 0;        ///< owned, zero matrices included
    int64_t elements = 0;        ///< of replicated elementwise parameters, updated by this rank for all replicas
    /// Computation and exchanges, one after the other.
    int64_t total_ns() const { return compute_ns + exchange_ns; }
  };
  /// What all ranks do in one wave.
  struct WaveTotal {
    int32_t matrices = 0;       ///< real ones
    int32_t zeros = 0;          ///< zero matrices
    int32_t owners = 0;         ///< ranks that orthogonalize in this wave
    int32_t collectives = 0;    ///< exchanges in which any byte moves between ranks
    int64_t bytes_in = 0;       ///< to owners
    int64_t bytes_out = 0;      ///< from owners
    int64_t padding_bytes = 0;  ///< padding among bytes_in and bytes_out
    int64_t in_ns = 0;          ///< exchange in, of the slowest rank
    int64_t compute_ns = 0;     ///< computation, of the slowest rank
    int64_t out_ns = 0;         ///< exchange out, of the slowest rank
  };
  std::vector<Rank> ranks;        ///< by rank
  std::vector<WaveTotal> waves;   ///< in the order of the step
  int64_t collectives = 0;        ///< exchanges per step in which any byte moves
  int64_t rounds = 0;             ///< waves, whether or not anything moves in them
  int64_t bytes_sent_max = 0;     ///< by the rank that sends most
  int64_t bytes_sent_total = 0;   ///< by all ranks
  int64_t padding_bytes = 0;      ///< by all ranks
  int64_t scratch_bytes_max = 0;  ///< on the rank that allocates most
  int64_t slowest_ns = 0;         ///< the slowest rank
  int64_t mean_ns = 0;            ///< the mean of all ranks
  int64_t largest_matrix_ns = 0;  ///< the largest matrix, at its owner
  int64_t predicted_ns = 0;       ///< the step, with exchanges and computation of different waves overlapping

  /// Slowest rank / mean rank.
  double imbalance() const;
  /// Slowest rank / max(mean rank, largest matrix).
  double over_bound() const;
};

/// Predicts the cost of a plan of this problem. Throws InvalidArgument for a bad problem or cost table, and for a plan
/// of another problem.
PlanSummary summarize(const Problem& problem, const Plan& plan, const CostTable& cost);

}  // namespace muster
