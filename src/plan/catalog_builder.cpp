#include <algorithm>
#include <limits>
#include <map>
#include <tuple>
#include <unordered_map>

#include "base/text.h"
#include "plan/catalog.h"
#include "plan/kind_key.h"

namespace muster::plan {

namespace {

// Limits the work on flat layouts that are also cut along dims, where every rank is tested against every matrix.
constexpr int64_t kMaxPairs = int64_t{1} << 27;

// Distributions over the ranks that have a bit of their own; a model has a few.
constexpr size_t kMostDistributions = 31;

auto tie(const MatrixClass& c) {
  return std::make_tuple(c.matrix.rows, c.matrix.columns, c.matrix.normuon, c.matrix.norm_axis, c.matrix.rule_workspace,
                         c.holder_set, c.in_bytes, c.out_bytes, c.all_replicas, c.weights_back, c.each_momentum,
                         c.line_set);
}

}  // namespace

class CatalogBuilder {
 public:
  explicit CatalogBuilder(Catalog& catalog) : c_(catalog) {}

  void build() {
    const Problem& problem = c_.problem_;
    std::unordered_map<std::string, int32_t> kinds;
    for (size_t p = 0; p < problem.parameters.size(); ++p) {
      const Parameter& parameter = problem.parameters[p];
      const auto [at, fresh] = kinds.emplace(kind_key(parameter), static_cast<int32_t>(c_.kinds_.size()));
      if (fresh) add_kind(parameter);
      c_.kind_of_.push_back(at->second);
      c_.first_matrix_.push_back(c_.matrix_count());
      const std::vector<int32_t>& classes = c_.kinds_[at->second].classes;
      c_.class_of_.insert(c_.class_of_.end(), classes.begin(), classes.end());
      c_.parameter_of_.insert(c_.parameter_of_.end(), classes.size(), static_cast<int32_t>(p));
    }
    find_distributions();
  }

 private:
  // One piece's part of a range of one dim.
  struct CutPiece {
    int32_t piece;
    int64_t length;
    auto operator<=>(const CutPiece&) const = default;
  };
  using Cut = std::vector<CutPiece>;

  // Per rank, the first rank that holds the same of a kind; -1 if it holds nothing.
  std::vector<int32_t> twins(const layout::Partition& partition) const {
    std::vector<int32_t> twin(c_.problem_.ranks, -1);
    for (int32_t p = 0; p < partition.positions(); ++p) {
      if (partition.local_elements(p) > 0) twin[partition.rank(p)] = partition.rank(partition.first_replica(p));
    }
    return twin;
  }

  void find_distributions() {
    const auto is_replicated = [](const Catalog::Kind& kind) { return kind.partition.replicas() > 1; };
    if (std::none_of(c_.kinds_.begin(), c_.kinds_.end(), is_replicated)) return;
    std::vector<std::vector<int32_t>> distributions;
    for (Catalog::Kind& kind : c_.kinds_) {
      if (!kind.grid && !is_replicated(kind)) continue;  // updated in place
      std::vector<int32_t> twin = twins(kind.partition);
      size_t bit = std::find(distributions.begin(), distributions.end(), twin) - distributions.begin();
      if (bit == distributions.size() && bit < kMostDistributions) distributions.push_back(std::move(twin));
      kind.distribution = Distributions{1} << std::min(bit, kMostDistributions);
      for (const int32_t c : kind.classes) c_.classes_[c].distributions |= kind.distribution;
    }
    // All further distributions share the bit past the last, which is alike to none.
    c_.alike_.assign(kMostDistributions + 1, 0);
    for (size_t a = 0; a < distributions.size(); ++a) {
      for (size_t b = 0; b < distributions.size(); ++b) {
        bool alike = true;
        for (size_t r = 0; r < distributions[a].size() && alike; ++r) {
          const int32_t twin = distributions[a][r];
          alike = twin < 0 || distributions[b][r] == distributions[b][twin];
        }
        if (alike) c_.alike_[a] |= Distributions{1} << b;
      }
    }
  }

  void add_kind(const Parameter& parameter) {
    const Mesh& mesh = c_.problem_.meshes[parameter.layout.mesh];
    c_.kinds_.push_back({layout::Partition(mesh, parameter.layout, parameter.shape, parameter.name), {}, {}, {}});
    Catalog::Kind& kind = c_.kinds_.back();
    if (!is_matrix_algorithm(parameter.algorithm)) return;
    kind.grid.emplace(parameter);
    if (holders_keep_statistics(parameter, *kind.grid)) kind.statistics.emplace(mesh, parameter, *kind.grid);
    cuts_.clear();
    cut_at_.assign(parameter.shape.size(), {});
    sets_by_cuts_.clear();
    line_sets_.clear();
    shards_.clear();
    ranges_.clear();
    for (int32_t i = 0; i < kind.grid->count(); ++i) kind.classes.push_back(add_class(parameter, kind, i));
  }

  int32_t add_class(const Parameter& parameter, const Catalog::Kind& kind, int32_t index) {
    MatrixClass c;
    c.matrix = kind.grid->at(index);
    c.holder_set = holder_set(kind, index);
    if (kind.statistics && c.matrix.normuon) c.line_set = line_set(kind, index);
    const HolderSet& set = c_.holder_sets_[c.holder_set];
    const int64_t wire = byte_size(c_.problem_.wire);
    c.all_replicas = c_.problem_.grad_sync && set.replicas > 1;
    c.each_momentum = parameter.state_keeper == StateKeeper::kHolders && set.replicas > 1 && keeps_momentum(parameter);
    c.weights_back = c.all_replicas && static_cast<int32_t>(set.holders.size()) == set.replicas;
    c.in_bytes = c.all_replicas ? byte_size(parameter.grad_dtype) : wire;
    c.out_bytes = c.weights_back ? byte_size(parameter.dtype) : wire;
    const auto shape_id = static_cast<int32_t>(shapes_.size());
    c.shape = shapes_.emplace(std::pair{c.matrix.rows, c.matrix.columns}, shape_id).first->second;
    const auto [at, fresh] = classes_.emplace(tie(c), static_cast<int32_t>(c_.classes_.size()));
    if (!fresh) return at->second;
    if (const HolderSet* const keepers = c_.line_set(c)) {
      c.lines_elsewhere = std::any_of(keepers->holders.begin(), keepers->holders.end(),
                                      [&](const Holder& keeper) { return set.find(keeper.rank) == nullptr; });
    }
    c_.classes_.push_back(c);
    return at->second;
  }

  int32_t holder_set(const Catalog::Kind& kind, int32_t index) {
    const std::vector<layout::Run> runs = kind.grid->runs(index);
    if (kind.partition.is_flat() || runs.size() > 1) return intern(holders_by_intersection(kind, runs));
    std::vector<int32_t> cuts;
    for (int d = 0; d < runs[0].box.dims; ++d) cuts.push_back(cut_of(kind.partition, d, runs[0].box));
    const auto known = sets_by_cuts_.find(cuts);
    if (known != sets_by_cuts_.end()) return known->second;
    const int32_t set = intern(holders_by_cuts(kind, cuts));
    sets_by_cuts_.emplace(std::move(cuts), set);
    return set;
  }

  // Numbers replicas as the parameter does.
  int32_t line_set(const Catalog::Kind& kind, int32_t index) {
    std::vector<int64_t> key = kind.statistics->keepers_key(index);
    const auto known = line_sets_.find(key);
    if (known != line_sets_.end()) return known->second;
    HolderSet set;
    set.replicas = kind.partition.replicas();
    for (const NormuonStatistics::Keeper& keeper : kind.statistics->keepers(index)) {
      set.holders.push_back({kind.partition.rank(keeper.position), keeper.position,
                             kind.partition.replica(keeper.position), keeper.lines});
    }
    return line_sets_.emplace(std::move(key), intern(std::move(set))).first->second;
  }

  int32_t cut_of(const layout::Partition& partition, int d, const layout::Box& box) {
    const std::pair<int64_t, int64_t> range{box.begin[d], box.end[d]};
    const auto known = cut_at_[d].find(range);
    if (known != cut_at_[d].end()) return known->second;
    std::map<int32_t, int64_t> length;  // by piece
    const auto& intervals = partition.intervals(d);
    auto at = std::partition_point(intervals.begin(), intervals.end(),
                                   [&](const auto& part) { return part.interval.end <= range.first; });
    for (; at != intervals.end() && at->interval.begin < range.second; ++at) {
      length[at->piece] += std::min(at->interval.end, range.second) - std::max(at->interval.begin, range.first);
    }
    Cut cut;
    for (const auto& [piece, elements] : length) cut.push_back({piece, elements});
    const auto [entry, fresh] = cuts_.emplace(std::move(cut), static_cast<int32_t>(cuts_.size()));
    cut_at_[d].emplace(range, entry->second);
    if (fresh) cut_by_id_.resize(cuts_.size());
    cut_by_id_[entry->second] = &entry->first;
    return entry->second;
  }

  // The product of the cuts of all dims.
  HolderSet holders_by_cuts(const Catalog::Kind& kind, const std::vector<int32_t>& cuts) {
    const int dims = static_cast<int>(cuts.size());
    HolderSet set;
    set.replicas = kind.partition.replicas();
    std::vector<int32_t> pieces(dims);
    auto descend = [&](auto& self, int d, int64_t elements) -> void {
      if (d == dims) {
        kind.partition.for_each_position(pieces, [&](int32_t position) {
          set.holders.push_back({kind.partition.rank(position), position, kind.partition.replica(position), elements});
        });
        return;
      }
      for (const CutPiece& piece : *cut_by_id_[cuts[d]]) {
        pieces[d] = piece.piece;
        self(self, d + 1, elements * piece.length);
      }
    };
    descend(descend, 0, 1);
    return set;
  }

  HolderSet holders_by_intersection(const Catalog::Kind& kind, const std::vector<layout::Run>& runs) {
    HolderSet set;
    set.replicas = kind.partition.replicas();
    for (const int32_t p : positions_near(kind.partition, runs)) {
      Holder holder{kind.partition.rank(p), p, kind.partition.replica(p), 0};
      for (const layout::Intersection& piece : layout::intersections(shard(kind.partition, p), runs))
        holder.elements += piece.box.volume();
      if (holder.elements > 0) set.holders.push_back(holder);
    }
    return set;
  }

  const std::vector<layout::Run>& shard(const layout::Partition& partition, int32_t position) {
    const auto [at, fresh] = shards_.try_emplace(position);
    if (fresh) at->second = partition.shard(position);
    return at->second;
  }

  // The positions that may hold some of these runs: if only ranges are cut, those whose range intersects; else all.
  std::vector<int32_t> positions_near(const layout::Partition& partition, const std::vector<layout::Run>& runs) {
    if (ranges_.empty()) {
      for (int32_t p = 0; p < partition.positions(); ++p) {
        const layout::Interval range = partition.local_range(p);
        if (range.size() > 0) ranges_.push_back({range, p});
      }
      std::stable_sort(ranges_.begin(), ranges_.end(), [](const auto& a, const auto& b) {
        return std::pair(a.interval.begin, a.piece) < std::pair(b.interval.begin, b.piece);
      });
    }
    std::vector<int32_t> out;
    if (!partition.is_only_flat()) {
      for (const auto& range : ranges_) out.push_back(range.piece);
    } else {
      const layout::Index strides = layout::row_major_strides(partition.shape());
      int64_t first = std::numeric_limits<int64_t>::max();
      int64_t last = 0;
      for (const layout::Run& run : runs) {
        int64_t low = 0;
        int64_t high = 0;
        for (int d = 0; d < run.box.dims; ++d) {
          low += run.box.begin[d] * strides[d];
          high += (run.box.end[d] - 1) * strides[d];
        }
        first = std::min(first, low);
        last = std::max(last, high);
      }
      auto at = std::partition_point(ranges_.begin(), ranges_.end(),
                                     [&](const auto& range) { return range.interval.end <= first; });
      for (; at != ranges_.end() && at->interval.begin <= last; ++at) out.push_back(at->piece);
    }
    pairs_ += static_cast<int64_t>(out.size());
    if (pairs_ > kMaxPairs) {
      base::fail("flat layouts: more than {} pairs of a matrix and a rank to look at", kMaxPairs);
    }
    return out;
  }

  static std::vector<int32_t> ranks_by_replica(const HolderSet& set) {
    std::vector<Holder> holders = set.holders;
    std::stable_sort(holders.begin(), holders.end(),
                     [](const Holder& a, const Holder& b) { return a.replica < b.replica; });
    std::vector<int32_t> ranks;
    for (const Holder& h : holders) ranks.push_back(h.rank);
    return ranks;
  }

  int32_t intern(HolderSet set) {
    std::sort(set.holders.begin(), set.holders.end(), [](const Holder& a, const Holder& b) { return a.rank < b.rank; });
    std::string key;
    std::string ranks;
    put(key, set.replicas);
    for (const Holder& h : set.holders) {
      for (const int64_t value : {int64_t{h.rank}, int64_t{h.position}, int64_t{h.replica}, h.elements}) {
        put(key, value);
      }
      put(ranks, h.rank);
      set.largest = std::max(set.largest, h.elements);
    }
    const auto [at, fresh] = holder_sets_.emplace(std::move(key), c_.holder_set_count());
    if (fresh) {
      set.peers = peers_.emplace(std::move(ranks), static_cast<int32_t>(peers_.size())).first->second;
      if (set.replicas > 1) set.by_replica = ranks_by_replica(set);
      c_.holder_sets_.push_back(std::move(set));
    }
    return at->second;
  }

  Catalog& c_;
  std::map<std::pair<int64_t, int64_t>, int32_t> shapes_;
  std::map<decltype(tie(MatrixClass{})), int32_t> classes_;
  std::unordered_map<std::string, int32_t> holder_sets_;
  std::unordered_map<std::string, int32_t> peers_;
  // For the kind that is being added.
  std::map<Cut, int32_t> cuts_;
  std::vector<const Cut*> cut_by_id_;
  std::vector<std::map<std::pair<int64_t, int64_t>, int32_t>> cut_at_;
  std::map<std::vector<int32_t>, int32_t> sets_by_cuts_;
  std::map<std::vector<int64_t>, int32_t> line_sets_;
  std::unordered_map<int32_t, std::vector<layout::Run>> shards_;  // by position
  std::vector<layout::Partition::PieceInterval> ranges_;          // local ranges and their positions, ascending
  int64_t pairs_ = 0;                                             // tested so far, over all kinds
};

Catalog::Catalog(const Problem& problem) : problem_(problem) { CatalogBuilder(*this).build(); }

}  // namespace muster::plan
