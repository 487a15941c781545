// Waves: which matrices are exchanged and orthogonalized together.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "muster/plan.h"
#include "plan/catalog.h"
#include "plan/cost_model/cost_model.h"

namespace muster::plan {

// Where one wave ends and the next begins.
enum class WaveCut : uint8_t {
  kByTime,     // every rank spreads what its matrices cost it evenly over the waves
  kByCompute,  // the same, of their computation alone
  kByShape,    // all matrices of a shape in one wave: fewest batches
  kInTurn,     // all matrices in one row, whatever their owners: few owners per wave, least scratch
};

// Orders matrices and cuts them into any number of waves. The first two cuts treat matrices that travel apart from
// those that stay home, which hide the exchanges; and matrices with an owner in each replica apart from those with a
// single owner.
class WaveCutter {
 public:
  WaveCutter(const Catalog& catalog, const CostModel& cost, const std::vector<int32_t>& owner, WaveCut cut,
             WaveOrder order);
  // All matrices in one row, in the order of their parameters.
  WaveCutter(const Catalog& catalog, const CostModel& cost, const std::vector<int32_t>& owner,
             const std::vector<int32_t>& order);

  // A wave for every matrix, 0 to K - 1, each used; K is at most `count`.
  std::vector<int32_t> waves(int32_t count) const;

 private:
  // Puts the items one after the other in this order.
  void line_up(const std::vector<int32_t>& order);

  // What goes into one wave together: a matrix, or all of a shape.
  struct Item {
    int64_t sequence = 0;  // items of one sequence are cut among themselves
    int64_t largest = 0;   // time of its largest matrix
    int64_t time = 0;      // of all
    int64_t middle = 0;    // twice the time from the start of its sequence to its middle
    int32_t kind = 0;      // equal matrices stay neighbours
  };
  std::vector<Item> items_;
  std::vector<int32_t> item_of_;                // a matrix
  std::unordered_map<int64_t, int64_t> total_;  // time of a sequence
};

}  // namespace muster::plan
