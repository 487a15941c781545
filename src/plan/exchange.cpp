#include "plan/exchange.h"

#include <algorithm>
#include <map>

#include "plan/element_shares.h"
#include "plan/normuon_statistics_routes.h"
#include "plan/replicas.h"

namespace muster::plan {

namespace {

enum class Direction { kIn, kOut };

// Which part of a plan's exchanges is asked for.
struct Part {
  int32_t rank = 0;
  int32_t wave = 0;
  Direction direction = Direction::kIn;
};

class ExchangeBuilder {
 public:
  ExchangeBuilder(const Catalog& catalog, const Plan& plan, Part part, const std::vector<bool>& active)
      : catalog_(catalog),
        plan_(plan),
        active_(active),
        rank_(part.rank),
        wave_(part.wave),
        direction_(part.direction) {}

  Exchange build() {
    const Wave& wave = plan_.waves[wave_];
    for (int32_t j = 0; j < catalog_.matrix_count(); ++j) {
      if (plan_.wave[j] == wave_ && is_active(catalog_.parameter_of(j))) add_lines(j);
    }
    for (const bool wide : {true, false}) {
      for (int32_t j = 0; j < catalog_.matrix_count(); ++j) {
        if (plan_.wave[j] == wave_ && takes_part(j, wide)) add_matrix(j, plan_.owner[j], wave.transport, false);
      }
      for (const ZeroMatrix& zero : wave.zeros) {
        if (takes_part(zero.like, wide)) add_matrix(zero.like, zero.owner, wave.transport, true);
      }
      for (const ElementShare& share : plan_.shares) {
        if (is_wide(width(share)) == wide) add_share(share);
      }
    }
    return {.sends = in_order(sends_),
            .receives = in_order(receives_),
            .local = std::move(local_),
            .local_lines = std::move(local_lines_)};
  }

 private:
  static std::vector<Message> in_order(std::map<int32_t, Message>& by_peer) {
    std::vector<Message> messages;
    for (auto& [peer, message] : by_peer) {
      message.peer = peer;
      if (message.bytes > 0) messages.push_back(std::move(message));
    }
    return messages;
  }

  static bool is_wide(int64_t bytes) { return bytes > 2; }
  bool is_active(int32_t parameter) const { return active_.empty() || active_[parameter]; }
  bool takes_part(int32_t j, bool wide) const {
    return is_active(catalog_.parameter_of(j)) && is_wide(width(j)) == wide;
  }

  // Bytes per element in a message.
  int64_t width(int32_t j) const {
    const MatrixClass& c = catalog_.class_at(j);
    return direction_ == Direction::kIn ? c.in_bytes : c.out_bytes;
  }
  int64_t width(const ElementShare& share) const {
    const std::vector<int32_t>& family = plan_.families[share.family];
    return direction_ == Direction::kIn ? share_in_bytes(catalog_.problem(), family)
                                        : share_out_bytes(catalog_.problem(), family);
  }

  // One piece of a matrix between its holder and a rank that assembles the matrix.
  struct Piece {
    const Holder& holder;
    int32_t assembler;
    bool real;  // false: zeros in its place
  };

  void add_matrix(int32_t j, int32_t owner, Transport transport, bool zero) {
    if (transport == Transport::kRagged || transport == Transport::kPadded) {
      add_owned(j, owner, transport, zero);
    } else {
      add_gathered(j, owner, transport);
    }
  }

  // Between holders and the owner, or the owner in this rank's replica.
  void add_owned(int32_t j, int32_t owner, Transport transport, bool zero) {
    const MatrixClass& c = catalog_.class_at(j);
    const HolderSet& set = catalog_.holder_set(c);
    const Holder* mine = set.find(rank_);
    const bool each = in_each_replica(plan_, j);
    if (each && mine == nullptr) return;
    if (each) owner = set.counterpart(owner, mine->replica);
    const int32_t source = set.source_replica(owner);
    auto travels = [&](const Holder& h) {
      return (direction_ == Direction::kOut && !each) || c.all_replicas || h.replica == source;
    };
    if (rank_ == owner) {
      for (const Holder& h : set.holders) {
        if (travels(h)) add_piece(j, {h, owner, !zero}, transport);
      }
    } else if (mine != nullptr && travels(*mine)) {
      add_piece(j, {*mine, owner, !zero}, transport);
    }
  }

  // Every holder assembles the matrix from its own replica. Out, each slice is the sum of what all send, of which only
  // the owner's is not zero. Where each holder orthogonalizes for itself, nothing is sent out.
  void add_gathered(int32_t j, int32_t owner, Transport transport) {
    const HolderSet& set = catalog_.holders_of(j);
    const Holder* mine = set.find(rank_);
    if (mine == nullptr) return;
    if (in_each_replica(plan_, j)) owner = set.counterpart(owner, mine->replica);
    for (const Holder& h : set.holders) {
      if (h.replica != mine->replica) continue;
      const bool out = direction_ == Direction::kOut;
      if (out && transport == Transport::kGather && h.rank != rank_) continue;
      add_piece(j, {h, rank_, !out || rank_ == owner || transport == Transport::kGather}, transport);
      if (h.rank != rank_) add_piece(j, {*mine, h.rank, !out || h.rank == owner}, transport);
    }
  }

  void add_lines(int32_t j) {
    for_each_line_route(catalog_, plan_, j, rank_, [&](const LineRoute& route) {
      if (direction_ == Direction::kIn ? !route.in : !route.out) return;
      Message* message = message_between(route.keeper, route.assembler);
      const int64_t offset = message == nullptr ? 0 : message->bytes;
      (message != nullptr ? message->lines : local_lines_).push_back({catalog_.parameter_of(j), j, route.part, offset});
      if (message != nullptr) message->bytes += route.part.count * kLineBytes;
    });
  }

  void add_piece(int32_t j, const Piece& piece, Transport transport) {
    const HolderSet& set = catalog_.holders_of(j);
    const int32_t p = catalog_.parameter_of(j);
    Message* message = message_between(piece.holder.rank, piece.assembler);
    const int64_t element_bytes = width(j);
    int64_t elements = 0;
    if (piece.real) {
      for (const layout::Intersection& o : layout::intersections(shard(p, piece.holder.position), runs(j))) {
        const int64_t offset = message == nullptr ? 0 : message->bytes + elements * element_bytes;
        (message != nullptr ? message->segments : local_).push_back({p, j, o, offset});
        elements += o.box.volume();
      }
    }
    if (message == nullptr) return;
    const int64_t sent = transport == Transport::kPadded ? set.largest : piece.holder.elements;
    message->bytes += sent * element_bytes;
    message->padding_bytes += (sent - elements) * element_bytes;
  }

  void add_share(const ElementShare& share) {
    const std::vector<int32_t>& family = plan_.families[share.family];
    const int64_t element_bytes = width(share);
    const auto mine = std::find(share.ranks.begin(), share.ranks.end(), rank_);
    if (mine == share.ranks.end()) return;
    for (size_t i = 0; i < share.ranks.size(); ++i) {
      const StreamRange range = share_in_wave(plan_, share, i, wave_);
      if (range.size() == 0) continue;
      for (const Segment& segment : stream_segments(family, range)) {
        for (const int32_t holder : share.ranks) {
          if (holder != rank_ && share.ranks[i] != rank_) continue;
          Message* message = message_between(holder, share.ranks[i]);
          if (message == nullptr) {
            local_.push_back(segment);
          } else if (element_bytes > 0) {
            message->segments.push_back(segment);
            message->segments.back().offset = message->bytes;
            message->bytes += segment.elements() * element_bytes;
          }
        }
      }
    }
  }

  // The parameters of a family lie end to end, each as this rank stores its shard.
  std::vector<Segment> stream_segments(const std::vector<int32_t>& family, StreamRange range) const {
    std::vector<Segment> segments;
    int64_t at = 0;
    for (const int32_t p : family) {
      const layout::Partition& partition = catalog_.partition(p);
      const int64_t size = partition.local_elements(partition.position_of(rank_));
      const int64_t begin = std::max(range.begin - at, int64_t{0});
      const int64_t end = std::min(range.end - at, size);
      if (begin < end && is_active(p)) {
        Segment segment;
        segment.parameter = p;
        segment.piece.box.dims = 1;
        segment.piece.box.begin[0] = begin;
        segment.piece.box.end[0] = end;
        segment.piece.first_offset = segment.piece.second_offset = begin;
        segment.piece.first_stride[0] = segment.piece.second_stride[0] = 1;
        segments.push_back(segment);
      }
      at += size;
    }
    return segments;
  }

  // Null if both are this rank. In: the holder sends. Out: the assembler does.
  Message* message_between(int32_t holder, int32_t assembler) {
    if (holder == assembler) return nullptr;
    const int32_t sender = direction_ == Direction::kIn ? holder : assembler;
    const int32_t receiver = direction_ == Direction::kIn ? assembler : holder;
    return sender == rank_ ? &sends_[receiver] : &receives_[sender];
  }

  const std::vector<layout::Run>& shard(int32_t parameter, int32_t position) {
    auto& entry = shards_[{catalog_.kind_of(parameter), position}];
    if (entry.empty()) entry = catalog_.partition(parameter).shard(position);
    return entry;
  }

  const std::vector<layout::Run>& runs(int32_t j) {
    if (runs_of_ != j) {
      runs_of_ = j;
      runs_ = catalog_.grid(catalog_.parameter_of(j)).runs(catalog_.index_in_parameter(j));
    }
    return runs_;
  }

  const Catalog& catalog_;
  const Plan& plan_;
  const std::vector<bool>& active_;
  const int32_t rank_;
  const int32_t wave_;
  const Direction direction_;
  std::map<int32_t, Message> sends_;
  std::map<int32_t, Message> receives_;
  std::vector<Segment> local_;
  std::vector<LineSegment> local_lines_;
  std::map<std::pair<int32_t, int32_t>, std::vector<layout::Run>> shards_;
  std::vector<layout::Run> runs_;
  int32_t runs_of_ = -1;
};

}  // namespace

Exchange exchange_in(const Catalog& catalog, const Plan& plan, int32_t rank, int32_t wave,
                     const std::vector<bool>& active) {
  return ExchangeBuilder(catalog, plan, {rank, wave, Direction::kIn}, active).build();
}

Exchange exchange_out(const Catalog& catalog, const Plan& plan, int32_t rank, int32_t wave,
                      const std::vector<bool>& active) {
  return ExchangeBuilder(catalog, plan, {rank, wave, Direction::kOut}, active).build();
}

}  // namespace muster::plan
