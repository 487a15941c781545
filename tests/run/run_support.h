// What the tests of runs share: a small problem, and a communicator that lies.
#pragma once

#include <cstdint>
#include <functional>

#include "muster/communicator.h"
#include "support/problems.h"
#include "support/run_ranks.h"
#include "support/tamper.h"

namespace muster::run {

// Ranks of which one, unless it is -1, flips the last bit of every message it sends in an exchange.
inline void run_tampered(int32_t ranks, int32_t liar, const std::function<void(Communicator&)>& body) {
  auto communicators = make_local_communicators(ranks, {std::chrono::seconds(60)});
  test::run_ranks(ranks, [&](int32_t rank) {
    test::TamperingCommunicator mine(std::move(communicators[rank]),
                                     [&](std::string_view, int32_t, std::span<std::byte> message) {
                                       if (rank == liar) message.back() ^= std::byte{1};
                                     });
    body(mine);
  });
}

// Six matrices of two shapes and a vector; the second matrix is cut by columns, so that storage is not in the order of
// elements.
inline Problem sample(int32_t ranks) {
  Problem problem = test::one_parameter({18, 12}, ranks, Algorithm::kNorMuon);
  problem.parameters.push_back(problem.parameters[0]);
  problem.parameters[1].name = "v";
  problem.parameters[1].shape = {20, 12};
  problem.parameters[1].dtype = Dtype::kBf16;
  problem.parameters[1].layout.placements = {Placement::shard(1)};
  for (const int64_t size : {6, 6, 6}) problem.parameters[0].matrices.rows.push_back({size, {}, {}});
  for (const int64_t size : {7, 7, 6}) problem.parameters[1].matrices.rows.push_back({size, {}, {}});
  problem.parameters.push_back(problem.parameters[0]);
  problem.parameters[2].name = "gain";
  problem.parameters[2].shape = {7};
  problem.parameters[2].algorithm = Algorithm::kAdamW;
  return problem;
}

}  // namespace muster::run
