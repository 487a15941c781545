// Counts the distinct pairs of ranks that exchange something, without listing pieces.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace muster::plan {

class MessageCounter {
 public:
  explicit MessageCounter(int32_t ranks);

  // Every rank in `from` writes to every other rank in `to`. Both are ascending, without repeats.
  void add(const std::vector<int32_t>& from, const std::vector<int32_t>& to);

  // Adds the messages of all pairs since the last clear() to sent[rank] and received[rank].
  // Exact up to 16,384 ranks; beyond, pairs that several calls name count several times.
  void count(std::vector<int64_t>& sent, std::vector<int64_t>& received);
  // Per rank, the lowest rank that it exchanges with, directly or through others; itself if there is none.
  std::vector<int32_t> connected() const;
  void clear() { groups_.clear(); }

 private:
  struct Group {
    std::vector<int32_t> from;
    std::vector<int32_t> to;
  };
  // Per rank a row of bits, one per peer. Rows in use are cleared after each count.
  struct Rows {
    std::vector<uint64_t> bits;
    std::vector<int32_t> used;
    std::vector<char> is_used;
  };
  void mark(Rows& rows, const std::vector<int32_t>& row_ranks, const std::vector<int32_t>& peers);
  void drain(Rows& rows, std::vector<int64_t>& totals);

  int32_t ranks_;
  size_t words_;
  std::vector<Group> groups_;
  Rows sent_;
  Rows received_;
};

}  // namespace muster::plan
