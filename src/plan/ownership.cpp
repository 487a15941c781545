#include "plan/ownership.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <set>
#include <tuple>

#include "plan/cost_model/rank_load.h"

namespace muster::plan {

namespace {

// A rank above the mean by more than 1 / this may give matrices to ranks that hold nothing of them.
constexpr int64_t kFarFraction = 32;
// Stop within 1 / this of the bound.
constexpr int64_t kDoneFraction = 256;
// The number of least loaded ranks that a move or swap considers.
constexpr size_t kTargets = 8;
// Holder lists up to this length are searched whole.
constexpr size_t kFewHolders = 64;

class Assignment {
 public:
  Assignment(const Catalog& catalog, const CostModel& cost, int64_t exchange_percent)
      : catalog_(catalog), cost_(cost), load_(catalog, cost, exchange_percent), owner_(catalog.matrix_count(), -1) {}

  std::vector<int32_t> run() {
    longest_first();
    owned_.resize(catalog_.problem().ranks);
    for (int32_t j = 0; j < catalog_.matrix_count(); ++j) owned_[owner_[j]].push_back(j);
    for (int32_t r = 0; r < catalog_.problem().ranks; ++r) by_load_.insert({load_.total(r), r});
    // Each step lowers the slowest rank, so this ends; the bound is for pathological costs.
    int64_t steps = int64_t{catalog_.matrix_count()} + 16 * int64_t{catalog_.problem().ranks};
    while (steps-- > 0 && improve()) {
    }
    return owner_;
  }

 private:
  int64_t work(int32_t c) const { return cost_.orthogonalize_ns(c) + cost_.normalize_ns(c); }

  // Ranks that hold the matrix whole, if there are any: nothing has to move in. Otherwise all holders. If each replica
  // has an owner, those of the first replica: the others follow it.
  std::vector<int32_t> candidates(int32_t c) const {
    const MatrixClass& matrices = catalog_.classes()[c];
    const HolderSet& set = catalog_.holder_set(matrices);
    std::vector<int32_t> ranks;
    for (const bool whole : {true, false}) {
      for (const Holder& h : set.holders) {
        if (cost_.in_each_replica(c) && h.replica != 0) continue;
        if (!whole || h.elements == matrices.matrix.elements()) ranks.push_back(h.rank);
      }
      if (!ranks.empty()) break;
    }
    return ranks;
  }

  void longest_first() {
    std::vector<std::vector<int32_t>> members(catalog_.classes().size());
    for (int32_t j = 0; j < catalog_.matrix_count(); ++j) members[catalog_.class_of(j)].push_back(j);
    struct Entry {
      bool free;  // has a choice; those without one go first, the others fill up around them
      int64_t work;
      int32_t c;
    };
    std::vector<Entry> entries;
    std::vector<std::vector<int32_t>> where;
    for (int32_t c = 0; c < static_cast<int32_t>(members.size()); ++c) {
      where.push_back(candidates(c));
      entries.push_back({where[c].size() > 1, work(c), c});
    }
    std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
      return std::tuple(a.free, -a.work, a.c) < std::tuple(b.free, -b.work, b.c);
    });
    for (const Entry& entry : entries) {
      using Choice = std::pair<int64_t, int32_t>;  // the rank's total with one more, the rank
      std::vector<Choice> choices;
      for (const int32_t rank : where[entry.c]) choices.push_back({load_.total_with(rank, entry.c), rank});
      std::priority_queue<Choice, std::vector<Choice>, std::greater<>> queue(std::greater<>(), std::move(choices));
      for (const int32_t j : members[entry.c]) {
        const int32_t rank = queue.top().second;
        queue.pop();
        owner_[j] = rank;
        load_.add(rank, entry.c);
        queue.push({load_.total_with(rank, entry.c), rank});
      }
    }
  }

  std::vector<int32_t> classes_of(int32_t rank) const {
    std::vector<int32_t> classes;
    for (const int32_t j : owned_[rank]) classes.push_back(catalog_.class_of(j));
    std::sort(classes.begin(), classes.end());
    classes.erase(std::unique(classes.begin(), classes.end()), classes.end());
    return classes;
  }

  // True if the move does not make a matrix travel that did not travel before.
  bool is_near(int32_t c, int32_t from, int32_t to) const {
    const MatrixClass& matrices = catalog_.classes()[c];
    const HolderSet& set = catalog_.holder_set(matrices);
    const Holder* source = set.find(from);
    const Holder* target = set.find(to);
    if (target == nullptr) return false;
    const int64_t all = matrices.matrix.elements();
    return source == nullptr || source->elements < all || target->elements == all;
  }

  bool may_move(int32_t c, int32_t from, int32_t to, bool far) const {
    if (to == from || cost_.in_each_replica(c)) return false;
    if (catalog_.classes()[c].weights_back && catalog_.holders_of_class(c).find(to) == nullptr) return false;
    return far || is_near(c, from, to);
  }

  struct Change {
    int64_t slower = 0;  // of the two ranks, afterwards
    int32_t gives = -1;  // class that leaves the slowest rank
    int32_t takes = -1;  // class that comes instead; -1: none
    int32_t to = -1;
    auto operator<=>(const Change&) const = default;
  };

  bool improve() {
    const auto [total, slowest] = *by_load_.rbegin();
    const int64_t mean = load_.sum() / catalog_.problem().ranks;
    const std::vector<int32_t> classes = classes_of(slowest);
    int64_t bound = mean;
    for (const int32_t c : classes) bound = std::max(bound, work(c));
    if (total <= bound + bound / kDoneFraction) return false;
    const bool far = total > mean + mean / kFarFraction;

    std::vector<int32_t> idle;
    for (auto at = by_load_.begin(); at != by_load_.end() && idle.size() < kTargets; ++at) idle.push_back(at->second);
    Change best{total, -1, -1, -1};
    for (const int32_t c : classes) {
      std::vector<int32_t> targets = idle;
      const HolderSet& set = catalog_.holders_of_class(c);
      if (set.holders.size() <= kFewHolders) {
        for (const Holder& h : set.holders) targets.push_back(h.rank);
      }
      const int64_t left = load_.total_without(slowest, c);
      for (const int32_t to : targets) {
        if (!may_move(c, slowest, to, far)) continue;
        best = std::min(best, {std::max(left, load_.total_with(to, c)), c, -1, to});
      }
    }
    if (best.gives < 0) best = best_swap(slowest, total, classes, idle);
    if (best.gives < 0) return false;
    apply(best, slowest);
    return true;
  }

  Change best_swap(int32_t slowest, int64_t total, const std::vector<int32_t>& classes,
                   const std::vector<int32_t>& idle) const {
    Change best{total, -1, -1, -1};
    for (const int32_t to : idle) {
      if (to == slowest) continue;
      for (const int32_t takes : classes_of(to)) {
        if (!may_move(takes, to, slowest, false)) continue;
        for (const int32_t gives : classes) {
          if (work(gives) <= work(takes) || !may_move(gives, slowest, to, false)) continue;
          const int64_t slower =
              std::max(load_.total_swapped(slowest, gives, takes), load_.total_swapped(to, takes, gives));
          best = std::min(best, {slower, gives, takes, to});
        }
      }
    }
    return best;
  }

  void apply(const Change& change, int32_t slowest) {
    by_load_.erase({load_.total(slowest), slowest});
    by_load_.erase({load_.total(change.to), change.to});
    transfer(change.gives, slowest, change.to);
    if (change.takes >= 0) transfer(change.takes, change.to, slowest);
    by_load_.insert({load_.total(slowest), slowest});
    by_load_.insert({load_.total(change.to), change.to});
  }

  // The last matrix of the class goes, so that ranks keep runs of neighbours.
  void transfer(int32_t c, int32_t from, int32_t to) {
    std::vector<int32_t>& mine = owned_[from];
    const auto last = std::find_if(mine.rbegin(), mine.rend(), [&](int32_t j) { return catalog_.class_of(j) == c; });
    const int32_t j = *last;
    mine.erase(std::next(last).base());
    owned_[to].push_back(j);
    owner_[j] = to;
    load_.remove(from, c);
    load_.add(to, c);
  }

  const Catalog& catalog_;
  const CostModel& cost_;
  RankLoad load_;
  std::vector<int32_t> owner_;
  std::vector<std::vector<int32_t>> owned_;
  std::set<std::pair<int64_t, int32_t>> by_load_;
};

}  // namespace

std::vector<int32_t> assign_owners(const Catalog& catalog, const CostModel& cost, int64_t exchange_percent) {
  return Assignment(catalog, cost, exchange_percent).run();
}

}  // namespace muster::plan
