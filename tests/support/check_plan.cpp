#include "support/check_plan.h"

#include <algorithm>
#include <map>
#include <set>

#include "plan/replicas.h"
#include "support/check_scratch.h"
#include "support/check_statistics.h"
#include "support/oracle.h"
#include "support/violation.h"

namespace muster::test {

namespace {

// Visits the offsets of a segment in the holder's shard and in the matrix, element by element.
template <typename Visit>
void for_each_element(const layout::Intersection& o, Visit visit) {
  std::function<void(int, int64_t, int64_t)> walk = [&](int d, int64_t first, int64_t second) {
    if (d == o.box.dims) {
      visit(first, second);
      return;
    }
    for (int64_t i = 0; i < o.box.end[d] - o.box.begin[d]; ++i) {
      walk(d + 1, first + i * o.first_stride[d], second + i * o.second_stride[d]);
    }
  };
  walk(0, o.first_offset, o.second_offset);
}

class Checker {
 public:
  Checker(const Problem& problem, const PlanOptions& options, const Planner& planner)
      : problem_(problem), options_(options), planner_(planner), catalog_(problem) {}

  void run() {
    derive();
    describe();
    ranks_.resize(problem_.ranks);
    for (int32_t w = 0; w < static_cast<int32_t>(plan_.waves.size()); ++w) {
      step(w, true);
      step(w, false);
    }
    check_arrivals();
    check_returns();
    for (int32_t j = 0; j < catalog_.matrix_count(); ++j) statistics_.check(j, orthogonalizers(j));
    check_summary();
  }

 private:
  void derive() {
    plan_ = planner_.plan(problem_, options_, 0);
    for (int32_t r = 1; r < problem_.ranks; ++r) {
      const Plan other = planner_.plan(problem_, options_, r);
      require(other.hash == plan_.hash, "rank {} derives hash {:x}, rank 0 {:x}", r, other.hash, plan_.hash);
      require(other.owner == plan_.owner && other.wave == plan_.wave && other.each_replica == plan_.each_replica &&
                  other.in_flight == plan_.in_flight,
              "rank {} derives another plan", r);
    }
    require(static_cast<int32_t>(plan_.owner.size()) == catalog_.matrix_count(), "{} owners", plan_.owner.size());
    require(plan_.each_replica.empty() || plan_.each_replica.size() == plan_.owner.size(), "replicas of matrices");
    std::vector<bool> used(plan_.waves.size());
    for (int32_t j = 0; j < catalog_.matrix_count(); ++j) {
      require(plan_.owner[j] >= 0 && plan_.owner[j] < problem_.ranks, "owner {} of matrix {}", plan_.owner[j], j);
      require(plan_.wave[j] >= 0 && plan_.wave[j] < static_cast<int32_t>(used.size()), "wave {}", plan_.wave[j]);
      used[plan_.wave[j]] = true;
    }
    // The first may be there for elements that travel alone.
    const bool elements_first = plan_.elementwise == ElementwiseOrder::kFirst && !plan_.shares.empty();
    if (elements_first) used[0] = true;
    for (size_t w = 0; w < used.size(); ++w) require(used[w] || used.size() == 1, "wave {} is empty", w);
    const auto most = std::max<int64_t>(1, static_cast<int64_t>(used.size()) - 1);
    require(plan_.in_flight >= 1 && plan_.in_flight <= most, "{} of {} waves in flight", plan_.in_flight, used.size());
    if (options_.in_flight > 0) {
      require(plan_.in_flight == std::min<int64_t>(options_.in_flight, most), "{} of {} waves in flight, not {}",
              plan_.in_flight, used.size(), options_.in_flight);
    }
    for (const Wave& wave : plan_.waves) {
      for (const ZeroMatrix& zero : wave.zeros) {
        const int32_t p = catalog_.parameter_of(zero.like);
        require(holds_some(p, zero.owner), "zeros for rank {}, no holder of parameter {}", zero.owner, p);
      }
    }
  }

  // Experts are gathered and padded as one tensor: by whoever holds any of them.
  bool holds_some(int32_t parameter, int32_t rank) const {
    for (int32_t i = 0; i < catalog_.grid(parameter).count(); ++i) {
      if (catalog_.holders_of(catalog_.first_matrix(parameter) + i).find(rank) != nullptr) return true;
    }
    return false;
  }

  // Where every element is and which matrices there are, from the oracle.
  void describe() {
    for (const Parameter& p : problem_.parameters) {
      const Mesh& mesh = problem_.meshes[p.layout.mesh];
      std::map<int32_t, List> shards;
      for (int32_t position = 0; position < mesh.size(); ++position) {
        shards[mesh.rank_at(position)] = shard_elements(mesh, p.layout, p.shape, position);
      }
      shards_.push_back(std::move(shards));
      if (!is_matrix_algorithm(p.algorithm)) continue;
      for (List& matrix : matrix_elements(p)) matrices_.push_back(std::move(matrix));
    }
    require(static_cast<int32_t>(matrices_.size()) == catalog_.matrix_count(), "{} matrices", matrices_.size());
    for (size_t j = 0; j < matrices_.size(); ++j) {
      const auto index = static_cast<int32_t>(j);
      require(catalog_.rows(index) * catalog_.columns(index) == static_cast<int64_t>(matrices_[j].size()),
              "matrix {} is {}x{}", j, catalog_.rows(index), catalog_.columns(index));
      copies_.push_back(0);
      holders_.push_back(0);
      for (const auto& [rank, shard] : shards_[catalog_.parameter_of(index)]) {
        copies_.back() += contains(shard, matrices_[j][0]);
        holders_.back() += std::any_of(matrices_[j].begin(), matrices_[j].end(),
                                       [&, &mine = shard](int64_t element) { return contains(mine, element); });
      }
    }
  }

  struct Traffic {
    int64_t sent = 0;
    int64_t received = 0;
    int64_t messages = 0;
    int64_t padding = 0;
  };

  void step(int32_t w, bool in) {
    std::vector<plan::Exchange> all;
    for (int32_t r = 0; r < problem_.ranks; ++r) {
      all.push_back((in ? planner_.in : planner_.out)(catalog_, plan_, r, w));
      scratch_.add(all.back(), {r, w}, in);
    }
    size_t sends = 0;
    size_t receives = 0;
    for (int32_t r = 0; r < problem_.ranks; ++r) {
      for (const auto* side : {&all[r].sends, &all[r].receives}) {
        for (size_t i = 1; i < side->size(); ++i) {
          require((*side)[i - 1].peer < (*side)[i].peer, "wave {}: rank {}'s messages are out of order", w, r);
        }
      }
      sends += all[r].sends.size();
      receives += all[r].receives.size();
      for (const plan::Message& message : all[r].sends) {
        require(message.peer >= 0 && message.peer < problem_.ranks && message.peer != r, "peer {}", message.peer);
        const plan::Message* other = nullptr;
        for (const plan::Message& m : all[message.peer].receives) {
          if (m.peer == r) other = &m;
        }
        require(other != nullptr, "wave {}: rank {} does not expect what rank {} sends", w, message.peer, r);
        compare(message, *other, w, r);
        ranks_[r].sent += message.bytes;
        ranks_[r].padding += message.padding_bytes;
        ++ranks_[r].messages;
        ranks_[message.peer].received += message.bytes;
        deliver(message, r, message.peer, w, in);
      }
      for (const plan::Segment& segment : all[r].local) deliver(segment, r, r, w, in);
      for (const plan::LineSegment& lines : all[r].local_lines) statistics_.add(lines, {r, r, w}, in);
    }
    require(sends == receives, "wave {}: {} messages sent, {} waited for", w, sends, receives);
  }

  void compare(const plan::Message& sent, const plan::Message& expected, int32_t w, int32_t from) {
    require(sent.bytes == expected.bytes && sent.padding_bytes == expected.padding_bytes,
            "wave {}: rank {} sends {} bytes to {}, which waits for {}", w, from, sent.bytes, sent.peer,
            expected.bytes);
    require(sent.bytes > 0, "wave {}: rank {} sends nothing to {}", w, from, sent.peer);
    require(sent.lines.size() == expected.lines.size(), "wave {}: {} line segments, {} expected", w, sent.lines.size(),
            expected.lines.size());
    for (size_t i = 0; i < sent.lines.size(); ++i) {
      const plan::LineSegment& a = sent.lines[i];
      const plan::LineSegment& b = expected.lines[i];
      require(a.parameter == b.parameter && a.matrix == b.matrix && a.offset == b.offset &&
                  a.part.held == b.part.held && a.part.line == b.part.line && a.part.count == b.part.count,
              "wave {}: rank {} and rank {} differ on line segment {}", w, from, sent.peer, i);
    }
    require(sent.segments.size() == expected.segments.size(), "wave {}: {} segments, {} expected", w,
            sent.segments.size(), expected.segments.size());
    for (size_t i = 0; i < sent.segments.size(); ++i) {
      const plan::Segment& a = sent.segments[i];
      const plan::Segment& b = expected.segments[i];
      require(a.parameter == b.parameter && a.matrix == b.matrix && a.piece.box == b.piece.box &&
                  a.piece.first_offset == b.piece.first_offset && a.piece.second_offset == b.piece.second_offset &&
                  a.offset == b.offset && a.piece.first_stride == b.piece.first_stride &&
                  a.piece.second_stride == b.piece.second_stride,
              "wave {}: rank {} and rank {} differ on segment {}", w, from, sent.peer, i);
    }
  }

  void deliver(const plan::Message& message, int32_t from, int32_t to, int32_t w, bool in) {
    int64_t bytes = message.padding_bytes;
    int64_t end = 0;
    for (const plan::LineSegment& lines : message.lines) {
      require(lines.offset >= end, "wave {}: segments of a message overlap", w);
      require(lines.offset % 4 == 0, "wave {}: a line segment is not aligned", w);
      end = lines.offset + lines.part.count * 4;
      require(end <= message.bytes, "wave {}: a segment ends beyond its message", w);
      statistics_.add(lines, {from, to, w}, in);
      bytes += lines.part.count * 4;
    }
    for (const plan::Segment& segment : message.segments) {
      require(segment.offset >= end, "wave {}: segments of a message overlap", w);
      require(segment.offset % width(segment, in) == 0, "wave {}: a segment is not aligned", w);
      end = segment.offset + segment.elements() * width(segment, in);
      require(end <= message.bytes, "wave {}: a segment ends beyond its message", w);
      deliver(segment, from, to, w, in);
      bytes += segment.elements() * width(segment, in);
    }
    require(bytes == message.bytes, "wave {}: a message of {} bytes carries {}", w, message.bytes, bytes);
  }

  int64_t width(const plan::Segment& segment, bool in) const {
    const Parameter& p = problem_.parameters[segment.parameter];
    if (segment.matrix < 0) return byte_size(in ? p.grad_dtype : p.dtype);
    // Raw gradients where replicas are summed, new weights where the owner has the old ones, updates otherwise.
    if (in) return byte_size(sums_replicas(segment.matrix) ? p.grad_dtype : problem_.wire);
    return byte_size(returns_weights(segment.matrix) ? p.dtype : problem_.wire);
  }

  bool sums_replicas(int32_t j) const { return problem_.grad_sync && copies_[j] > 1; }
  bool returns_weights(int32_t j) const { return sums_replicas(j) && copies_[j] == holders_[j]; }

  // The ranks that orthogonalize a matrix: those where all of it arrives, or of those that gather only to send, its
  // owner.
  std::vector<int32_t> orthogonalizers(int32_t j) {
    std::set<int32_t> ranks;
    if (plan_.waves[plan_.wave[j]].transport == Transport::kGatherReduce) {
      for (int32_t r = 0; r < problem_.ranks; ++r) {
        if (plan::owner_for(catalog_, plan_, j, r) == r) ranks.insert(r);
      }
      return {ranks.begin(), ranks.end()};
    }
    for (const auto& [pair, count] : arrived_[{catalog_.parameter_of(j), j, matrices_[j][0]}])
      ranks.insert(pair.second);
    return {ranks.begin(), ranks.end()};
  }

  // Writes down which element came from where, in both buffers' coordinates.
  void deliver(const plan::Segment& segment, int32_t from, int32_t to, int32_t w, bool in) {
    const int32_t holder = in ? from : to;
    const int32_t assembler = in ? to : from;
    const auto& shards = shards_[segment.parameter];
    const auto shard = shards.find(holder);
    require(shard != shards.end(), "rank {} holds nothing of parameter {}", holder, segment.parameter);
    const auto size = static_cast<int64_t>(shard->second.size());
    if (segment.matrix >= 0) {
      require(plan_.wave[segment.matrix] == w, "matrix {} moves in wave {}", segment.matrix, w);
      require(catalog_.parameter_of(segment.matrix) == segment.parameter, "parameter of matrix {}", segment.matrix);
    }
    for_each_element(segment.piece, [&](int64_t first, int64_t second) {
      require(first >= 0 && first < size, "offset {} in a shard of {}", first, size);
      const int64_t element = shard->second[static_cast<size_t>(first)];
      if (segment.matrix < 0) {
        require(second == first, "an elementwise range moves from {} to {}", first, second);
      } else {
        const List& matrix = matrices_[segment.matrix];
        require(second >= 0 && second < static_cast<int64_t>(matrix.size()), "offset {} in a matrix", second);
        require(matrix[static_cast<size_t>(second)] == element, "element {} of parameter {} lands on {}", element,
                segment.parameter, matrix[static_cast<size_t>(second)]);
      }
      auto& count = in ? arrived_ : returned_;
      ++count[{segment.parameter, segment.matrix, element}][{holder, assembler}];
    });
  }

  // Every assembler of a matrix has every element once from its own replica, or once from every replica. Where every
  // replica has an owner, what returns comes from whom it went to: check_returns.
  void check_arrivals() {
    for (int32_t j = 0; j < catalog_.matrix_count(); ++j) {
      const int32_t p = catalog_.parameter_of(j);
      const Transport transport = plan_.waves[plan_.wave[j]].transport;
      const bool gathered = transport == Transport::kGather || transport == Transport::kGatherReduce;
      const bool each = in_each_replica(j);
      for (const int64_t element : matrices_[j]) {
        std::map<int32_t, int32_t> copies;
        for (const auto& [pair, count] : arrived_[{p, j, element}]) {
          require(count == 1, "element {} of matrix {} reaches rank {} {} times from {}", element, j, pair.second,
                  count, pair.first);
          ++copies[pair.second];
        }
        require(copies.contains(plan_.owner[j]), "element {} of matrix {} does not reach its owner", element, j);
        for (const auto& [rank, count] : copies) {
          require(gathered || each || rank == plan_.owner[j], "matrix {} reaches rank {}, not its owner", j, rank);
          require(count == (sums_replicas(j) && !gathered ? copies_[j] : 1), "element {} of matrix {} comes {} times",
                  element, j, count);
        }
        if (each && !gathered) check_owners(j, copies);
        if (gathered) require(static_cast<int32_t>(copies.size()) == holders_[j], "matrix {} misses a holder", j);
        const bool owner_holds = holds(plan_.owner[j], p, element);
        require(!owner_holds || arrived_[{p, j, element}].contains({plan_.owner[j], plan_.owner[j]}),
                "element {} of matrix {} comes from another replica than its owner's", element, j);
        require(owner_holds || gathered || !returns_weights(j), "matrix {} returns weights that its owner lacks", j);
      }
    }
  }

  // The same ranks have all elements of a matrix, one for each copy of it.
  void check_owners(int32_t j, const std::map<int32_t, int32_t>& copies) {
    require(!sums_replicas(j), "matrix {} is not averaged", j);
    std::vector<int32_t> ranks;
    for (const auto& [rank, count] : copies) ranks.push_back(rank);
    require(static_cast<int32_t>(ranks.size()) == copies_[j], "{} ranks orthogonalize matrix {}", ranks.size(), j);
    const auto [known, fresh] = owners_.emplace(j, ranks);
    require(known->second == ranks, "some of matrix {} goes to other ranks than the rest", j);
  }

  bool in_each_replica(int32_t j) const { return !plan_.each_replica.empty() && plan_.each_replica[j]; }

  static bool contains(const List& shard, int64_t element) {
    return std::find(shard.begin(), shard.end(), element) != shard.end();
  }

  bool holds(int32_t rank, int32_t parameter, int64_t element) const {
    const auto shard = shards_[parameter].find(rank);
    return shard != shards_[parameter].end() && contains(shard->second, element);
  }

  // Every holder gets every element back once, from one rank; elementwise parameters have one updater an element.
  void check_returns() {
    std::map<std::pair<int32_t, int64_t>, int32_t> matrix_of;
    for (int32_t j = 0; j < catalog_.matrix_count(); ++j) {
      for (const int64_t element : matrices_[j]) matrix_of[{catalog_.parameter_of(j), element}] = j;
    }
    for (int32_t p = 0; p < static_cast<int32_t>(problem_.parameters.size()); ++p) {
      const bool matrix = is_matrix_algorithm(problem_.parameters[p].algorithm);
      std::map<int64_t, int32_t> replicas;
      for (const auto& [rank, shard] : shards_[p]) {
        for (const int64_t element : shard) ++replicas[element];
      }
      for (const auto& [rank, shard] : shards_[p]) {
        for (const int64_t element : shard) {
          const int32_t j = matrix ? matrix_of.at({p, element}) : -1;
          const auto& back = returned_[{p, j, element}];
          int32_t times = 0;
          int32_t updater = -1;
          for (const auto& [pair, count] : back) {
            if (pair.first != rank) continue;
            times += count;
            updater = pair.second;
          }
          const bool kept = problem_.parameters[p].state_keeper == StateKeeper::kHolders;
          if (!matrix && (replicas[element] == 1 || kept)) {
            require(times == 0, "element {} of parameter {} is updated by its holders and moves", element, p);
            continue;
          }
          require(times == 1, "element {} of parameter {} returns to rank {} {} times", element, p, rank, times);
          const bool any_holder = matrix && plan_.waves[plan_.wave[j]].transport == Transport::kGather;
          if (matrix && in_each_replica(j)) {
            require(arrived_[{p, j, element}].contains({rank, updater}), "matrix {} returns from another replica", j);
            require(updater == plan::owner_for(catalog_, plan_, j, rank), "matrix {} returns from rank {}", j, updater);
          } else if (matrix && !any_holder) {
            require(updater == plan_.owner[j], "matrix {} returns from rank {}", j, updater);
          }
          if (!matrix) {
            for (const auto& [pair, count] : back) {
              require(pair.second == updater && count == 1, "two ranks update element {}", element);
            }
            for (const auto& [pair, count] : arrived_[{p, -1, element}]) {
              require(pair.second == updater && count == 1, "a gradient of element {} goes astray", element);
            }
            const auto sent = arrived_.find({p, -1, element});
            const int32_t expected = problem_.grad_sync ? replicas[element] : 1;
            require(sent != arrived_.end() && static_cast<int32_t>(sent->second.size()) == expected,
                    "element {} of parameter {} reaches its updater from other than {} ranks", element, p, expected);
          }
        }
      }
    }
  }

  void check_summary() {
    const PlanSummary summary = summarize(problem_, plan_, options_.cost);
    int64_t total = 0;
    int64_t padding = 0;
    for (int32_t r = 0; r < problem_.ranks; ++r) {
      const PlanSummary::Rank& rank = summary.ranks[r];
      require(rank.bytes_sent == ranks_[r].sent, "rank {} sends {} bytes, predicted {}", r, ranks_[r].sent,
              rank.bytes_sent);
      require(rank.bytes_received == ranks_[r].received, "rank {} receives {} bytes, predicted {}", r,
              ranks_[r].received, rank.bytes_received);
      require(rank.messages_sent == ranks_[r].messages, "rank {} sends {} messages, predicted {}", r,
              ranks_[r].messages, rank.messages_sent);
      total += ranks_[r].sent;
      padding += ranks_[r].padding;
    }
    require(summary.bytes_sent_total == total, "{} bytes in all, predicted {}", total, summary.bytes_sent_total);
    require(summary.padding_bytes == padding, "{} bytes of padding, predicted {}", padding, summary.padding_bytes);
    const std::string scratch = scratch_.violation(summary);
    require(scratch.empty(), "{}", scratch);
    if (options_.strategy != Strategy::kGlobal) return;
    require(padding == 0, "global pads {} bytes", padding);
    require(plan_.scratch_cap == options_.scratch_bytes || !options_.scratch_bytes,
            "cap {}, not the one that was given", plan_.scratch_cap);
    require(plan_.scratch_cap == 0 || summary.scratch_bytes_max <= plan_.scratch_cap, "scratch {} over {}",
            summary.scratch_bytes_max, plan_.scratch_cap);
    require(options_.waves == 0 || summary.rounds <= options_.waves, "{} waves", summary.rounds);
  }

  const Problem& problem_;
  const PlanOptions& options_;
  const Planner& planner_;
  const plan::Catalog catalog_;
  Plan plan_;
  std::vector<std::map<int32_t, List>> shards_;  // a parameter, by rank
  std::vector<List> matrices_;
  std::vector<int32_t> copies_;   // of every element of a matrix
  std::vector<int32_t> holders_;  // ranks that hold some of a matrix
  std::vector<Traffic> ranks_;
  std::map<int32_t, std::vector<int32_t>> owners_;  // of a matrix, where every replica has one
  ScratchCheck scratch_{{problem_, options_, catalog_, plan_, shards_, matrices_, copies_, holders_}};
  StatisticsCheck statistics_{catalog_, plan_};
  // By parameter, matrix and element: how often between which holder and assembler.
  using Element = std::tuple<int32_t, int32_t, int64_t>;
  std::map<Element, std::map<std::pair<int32_t, int32_t>, int32_t>> arrived_;
  std::map<Element, std::map<std::pair<int32_t, int32_t>, int32_t>> returned_;
};

}  // namespace

Planner real_planner() {
  return {[](const Problem& problem, const PlanOptions& options, int32_t) { return make_plan(problem, options); },
          [](const auto&... arguments) { return plan::exchange_in(arguments...); },
          [](const auto&... arguments) { return plan::exchange_out(arguments...); }};
}

std::string violation(const Problem& problem, const PlanOptions& options, const Planner& planner) {
  try {
    Checker(problem, options, planner).run();
  } catch (const Violation& found) {
    return found.what();
  }
  return {};
}

}  // namespace muster::test
