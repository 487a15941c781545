// The plan: who orthogonalizes which matrix, in which wave, and who updates which elements.
//
// A pure function of its arguments: no communication, clock, randomness or floating point. Every rank computes the
// same plan and compares `hash` with the others.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "muster/cost.h"
#include "muster/problem.h"

namespace muster {

enum class Strategy : uint8_t { kGlobal, kPerMatrix, kChunked, kGrouped, kMegabatch, kRouted, kLayerwise };

std::string_view name(Strategy strategy);
Strategy parse_strategy(std::string_view name);  // throws InvalidArgument
const std::vector<Strategy>& all_strategies();

// Which matrices go first. Small ones arrive sooner, so that the first computation starts sooner.
enum class WaveOrder : uint8_t { kSmallFirst, kSmallLast };

// When AdamW and Lion update: beside the matrices of every wave, where they fill the time exchanges take, or all in the
// last wave, or all in the first, as the peers' rounds have it; kGlobal may take those rounds for kInterleaved.
enum class ElementwiseOrder : uint8_t { kInterleaved, kLast, kFirst };

struct PlanOptions {
  Strategy strategy = Strategy::kGlobal;
  int32_t waves = 0;  // 0: as many as predicted time and the cap ask for. kGlobal only, as the next two
  WaveOrder wave_order = WaveOrder::kSmallFirst;
  ElementwiseOrder elementwise = ElementwiseOrder::kInterleaved;
  // Parameters in the order in which their gradients come, each at most once; those not in it come last. Waves are then
  // cut in that order, in place of wave_order, 8 of them or as many more as the cap asks for. kGlobal only. Empty:
  // none.
  std::vector<int32_t> order{};
  int64_t scratch_bytes = 1 << 30;  // cap on a rank's scratch; 0: none. Held by kGlobal; the others have no such notion
  CostTable cost = CostTable::h200();
};

// How the matrices of a wave reach who orthogonalizes them, and return.
enum class Transport : uint8_t {
  kRagged,        // to the owner and back, exactly what is held
  kPadded,        // the same, every shard padded to the largest, zero matrices to fill the ranks
  kGather,        // to every holder; each orthogonalizes for itself, nothing returns
  kGatherReduce,  // to every holder; the owner orthogonalizes, the others add zeros in a reduce-scatter
};

// Padding that is sent and orthogonalized like the matrix it stands beside.
struct ZeroMatrix {
  int32_t like = 0;  // index of a real matrix of the same shape and layout
  int32_t owner = 0;
};

struct Wave {
  Transport transport = Transport::kRagged;
  std::vector<ZeroMatrix> zeros;
};

// Elementwise parameters (AdamW, Lion) on replicated storage. The parameters of one family lie end to end in a stream;
// the ranks that hold the same part of it share the updating: ranks[i] updates elements cuts[i] to cuts[i+1].
struct ElementShare {
  int32_t family = 0;  // index into Plan::families
  std::vector<int32_t> ranks;
  std::vector<int64_t> cuts;
};

struct Plan {
  Strategy strategy = Strategy::kGlobal;
  WaveOrder wave_order = WaveOrder::kSmallFirst;
  ElementwiseOrder elementwise = ElementwiseOrder::kInterleaved;
  // One entry a matrix, in the order of the parameters, then batch index, row block, column block.
  std::vector<int32_t> owner;
  std::vector<int32_t> wave;
  // Matrices that every replica orthogonalizes for itself, so that nothing of them travels between replicas: `owner`
  // for its own replica, and in each other the rank in the same place. Empty: none.
  std::vector<bool> each_replica;
  std::vector<Wave> waves;
  std::vector<std::vector<int32_t>> families;  // indices of parameters
  std::vector<ElementShare> shares;
  uint64_t hash = 0;  // of problem, cost table, version and everything above
};

// Throws InvalidArgument for a bad problem, cost table or option, or where no wave count meets the scratch cap.
Plan make_plan(const Problem& problem, const PlanOptions& options);

// What a plan costs, predicted. Times are nanoseconds; bytes are on the wire, between ranks, both directions of a step.
struct PlanSummary {
  struct Rank {
    int64_t compute_ns = 0;   // orthogonalization, NorMuon, elementwise
    int64_t exchange_ns = 0;  // bytes in and out, messages
    int64_t bytes_sent = 0;
    int64_t bytes_received = 0;
    int64_t messages_sent = 0;
    int64_t scratch_bytes = 0;  // upper bound of what an engine allocates beside state: arena and workspace
    int32_t matrices = 0;       // owned, zero matrices included
    int64_t elements = 0;       // of elementwise parameters on replicated storage, updated here for all replicas
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
    int64_t in_ns = 0;  // slowest rank
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
  int64_t slowest_ns = 0;         // slowest rank
  int64_t mean_ns = 0;            // mean rank
  int64_t largest_matrix_ns = 0;  // at its owner
  int64_t predicted_ns = 0;       // the step, waves overlapping

  double imbalance() const;   // slowest / mean
  double over_bound() const;  // slowest / max(mean, largest matrix)
};

PlanSummary summarize(const Problem& problem, const Plan& plan, const CostTable& cost);

}  // namespace muster
