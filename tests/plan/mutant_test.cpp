// The property checks bite: deliberately broken planners are each caught, on every problem where the damage shows.
#include <algorithm>

#include <gtest/gtest.h>

#include "base/hash.h"
#include "muster/error.h"
#include "plan/plan_hash.h"
#include "support/check_plan.h"
#include "support/random_problem.h"

namespace muster::test {
namespace {

// Runs a broken planner over random problems. `damaged` tells, after a run, whether it had anything to break.
template <typename MakeMutant>
void expect_caught(MakeMutant make_mutant) {
  int applied = 0;
  for (uint64_t seed = 0; applied < 100; ++seed) {
    ASSERT_LT(seed, 5'000U) << "the mutant hardly ever applies";
    const RandomCase c = random_case(seed);
    bool damaged = false;
    std::string found;
    try {
      found = violation(c.problem, c.options, make_mutant(c.options, damaged));
    } catch (const InvalidArgument&) {
      continue;
    }
    if (!damaged) continue;
    ++applied;
    EXPECT_NE(found, "") << "seed " << seed;
  }
}

// Two matrices of different owners change places.
bool swap_owners(Plan& plan) {
  for (size_t i = 1; i < plan.owner.size(); ++i) {
    if (plan.owner[i] == plan.owner[0]) continue;
    std::swap(plan.owner[i], plan.owner[0]);
    return true;
  }
  return false;
}

TEST(Mutants, ASwappedOwnerOnOneRankIsCaught) {
  expect_caught([](const PlanOptions& options, bool& damaged) {
    Planner planner = real_planner();
    planner.plan = [&damaged, cost = options.cost](const Problem& problem, const PlanOptions& o, int32_t rank) {
      Plan plan = make_plan(problem, o);
      if (rank == problem.ranks - 1 && rank > 0 && swap_owners(plan)) {
        damaged = true;
        plan.hash = plan::plan_hash(problem, cost, plan);
      }
      return plan;
    };
    return planner;
  });
}

TEST(Mutants, OwnersThatChangeBetweenInAndOutAreCaught) {
  expect_caught([](const PlanOptions&, bool& damaged) {
    Planner planner = real_planner();
    planner.out = [&damaged](const plan::Catalog& catalog, const Plan& plan, int32_t rank, int32_t wave) {
      Plan other = plan;
      // Where every holder assembles and nothing returns, or every replica does, the owner is a name only.
      const bool shows =
          plan.each_replica.empty() && std::all_of(plan.waves.begin(), plan.waves.end(),
                                                   [](const Wave& w) { return w.transport != Transport::kGather; });
      if (shows && swap_owners(other)) damaged = true;
      return plan::exchange_out(catalog, shows ? other : plan, rank, wave);
    };
    return planner;
  });
}

TEST(Mutants, ATieThatDependsOnTheRankIsCaught) {
  expect_caught([](const PlanOptions& options, bool& damaged) {
    Planner planner = real_planner();
    planner.plan = [&damaged, cost = options.cost](const Problem& problem, const PlanOptions& o, int32_t rank) {
      Plan plan = make_plan(problem, o);
      // Equal matrices cost the same on either rank; the last rank happens to choose the other way round.
      const plan::Catalog catalog(problem);
      for (int32_t j = 1; j < catalog.matrix_count() && rank > 0 && rank == problem.ranks - 1; ++j) {
        if (catalog.class_of(j) != catalog.class_of(j - 1) || plan.owner[j] == plan.owner[j - 1]) continue;
        std::swap(plan.owner[j], plan.owner[j - 1]);
        plan.hash = plan::plan_hash(problem, cost, plan);
        damaged = true;
        break;
      }
      return plan;
    };
    return planner;
  });
}

using Damage = void (*)(plan::Exchange&, bool&);

// Damages what every rank generates on the way in, senders and receivers alike where the damage touches both.
Planner damaged_exchange(Damage damage, bool& damaged) {
  Planner planner = real_planner();
  planner.in = [&damaged, damage](const plan::Catalog& catalog, const Plan& plan, int32_t rank, int32_t wave) {
    plan::Exchange exchange = plan::exchange_in(catalog, plan, rank, wave);
    damage(exchange, damaged);
    return exchange;
  };
  return planner;
}

template <typename Change>
void for_each_message(plan::Exchange& exchange, Change change) {
  for (auto* side : {&exchange.sends, &exchange.receives}) {
    for (plan::Message& message : *side) change(message);
  }
}

TEST(Mutants, ADroppedRunIsCaught) {
  expect_caught([](const PlanOptions&, bool& damaged) {
    return damaged_exchange(
        [](plan::Exchange& exchange, bool& hit) {
          for_each_message(exchange, [&](plan::Message& message) {
            if (message.segments.empty()) return;
            // The bytes stay as they were, as padding: only the elements are lost.
            const int64_t elements = message.segments.back().elements();
            int64_t all = 0;
            for (const plan::Segment& segment : message.segments) all += segment.elements();
            message.padding_bytes += (message.bytes - message.padding_bytes) / all * elements;
            message.segments.pop_back();
            hit = true;
          });
        },
        damaged);
  });
}

TEST(Mutants, AShiftedOffsetIsCaught) {
  expect_caught([](const PlanOptions&, bool& damaged) {
    return damaged_exchange(
        [](plan::Exchange& exchange, bool& hit) {
          for_each_message(exchange, [&](plan::Message& message) {
            for (plan::Segment& segment : message.segments) ++segment.piece.first_offset;
            hit = hit || !message.segments.empty();
          });
        },
        damaged);
  });
}

TEST(Mutants, APieceThatLandsTwiceIsCaught) {
  expect_caught([](const PlanOptions&, bool& damaged) {
    return damaged_exchange(
        [](plan::Exchange& exchange, bool& hit) {
          if (exchange.local.empty()) return;
          exchange.local.push_back(exchange.local.front());
          hit = hit || exchange.local.front().matrix >= 0;
        },
        damaged);
  });
}

TEST(Mutants, AMessageThatNobodySendsIsCaught) {
  expect_caught([](const PlanOptions&, bool& damaged) {
    return damaged_exchange(
        [](plan::Exchange& exchange, bool& hit) {
          if (exchange.sends.empty()) return;
          exchange.sends.pop_back();
          hit = true;
        },
        damaged);
  });
}

TEST(Mutants, AStrideThatOnlyTheReceiverHasIsCaught) {
  expect_caught([](const PlanOptions&, bool& damaged) {
    return damaged_exchange(
        [](plan::Exchange& exchange, bool& hit) {
          for (plan::Message& message : exchange.receives) {
            for (plan::Segment& segment : message.segments) {
              for (int64_t& stride : segment.piece.second_stride) stride *= 2;
              hit = true;
            }
          }
        },
        damaged);
  });
}

TEST(Mutants, MessagesOutOfOrderAreCaught) {
  expect_caught([](const PlanOptions&, bool& damaged) {
    return damaged_exchange(
        [](plan::Exchange& exchange, bool& hit) {
          if (exchange.sends.size() < 2) return;
          std::swap(exchange.sends.front(), exchange.sends.back());
          hit = true;
        },
        damaged);
  });
}

TEST(Mutants, AnElementThatIsUpdatedTwiceIsCaught) {
  expect_caught([](const PlanOptions&, bool& damaged) {
    Planner planner = real_planner();
    planner.out = [&damaged](const plan::Catalog& catalog, const Plan& plan, int32_t rank, int32_t wave) {
      plan::Exchange exchange = plan::exchange_out(catalog, plan, rank, wave);
      const auto range = std::find_if(exchange.local.begin(), exchange.local.end(),
                                      [](const plan::Segment& segment) { return segment.matrix < 0; });
      if (range != exchange.local.end()) {
        damaged = true;
        exchange.local.push_back(plan::Segment(*range));
      }
      return exchange;
    };
    return planner;
  });
}

TEST(Mutants, AReplicaThatOneRankForgetsIsCaught) {
  expect_caught([](const PlanOptions& options, bool& damaged) {
    Planner planner = real_planner();
    planner.plan = [&damaged, cost = options.cost](const Problem& problem, const PlanOptions& o, int32_t rank) {
      Plan plan = make_plan(problem, o);
      if (rank > 0 && rank == problem.ranks - 1 && !plan.each_replica.empty()) {
        plan.each_replica.clear();
        plan.hash = plan::plan_hash(problem, cost, plan);
        damaged = true;
      }
      return plan;
    };
    return planner;
  });
}

// What every replica orthogonalized for itself comes back from one of them.
TEST(Mutants, AnUpdateFromAnotherReplicaIsCaught) {
  expect_caught([](const PlanOptions&, bool& damaged) {
    Planner planner = real_planner();
    planner.out = [&damaged](const plan::Catalog& catalog, const Plan& plan, int32_t rank, int32_t wave) {
      Plan other = plan;
      other.each_replica.clear();
      damaged = damaged || !plan.each_replica.empty();
      return plan::exchange_out(catalog, other, rank, wave);
    };
    return planner;
  });
}

// Weights come back only from a rank that has them.
TEST(Mutants, AnOwnerWithoutTheWeightsItReturnsIsCaught) {
  expect_caught([](const PlanOptions& options, bool& damaged) {
    Planner planner = real_planner();
    planner.plan = [&damaged, cost = options.cost](const Problem& problem, const PlanOptions& o, int32_t) {
      Plan plan = make_plan(problem, o);
      const plan::Catalog catalog(problem);
      for (int32_t j = 0; j < catalog.matrix_count(); ++j) {
        if (!catalog.class_at(j).weights_back || plan.waves[plan.wave[j]].transport != Transport::kRagged) continue;
        for (int32_t r = 0; r < problem.ranks; ++r) {
          if (catalog.holders_of(j).find(r) != nullptr) continue;
          plan.owner[j] = r;
          damaged = true;
        }
      }
      plan.hash = plan::plan_hash(problem, cost, plan);
      return plan;
    };
    return planner;
  });
}

}  // namespace
}  // namespace muster::test
