#include "plan/messages.h"

#include <algorithm>
#include <bit>
#include <numeric>

namespace muster::plan {

namespace {

constexpr int32_t kMostExactRanks = 16384;

// How many of `others` are not `rank`.
int64_t peers_of(int32_t rank, const std::vector<int32_t>& others) {
  return static_cast<int64_t>(others.size()) - std::binary_search(others.begin(), others.end(), rank);
}

}  // namespace

MessageCounter::MessageCounter(int32_t ranks) : ranks_(ranks), words_((static_cast<size_t>(ranks) + 63) / 64) {}

void MessageCounter::add(const std::vector<int32_t>& from, const std::vector<int32_t>& to) {
  if (from.empty() || to.empty() || (from.size() == 1 && from == to)) return;
  groups_.push_back({from, to});
}

void MessageCounter::mark(Rows& rows, const std::vector<int32_t>& row_ranks, const std::vector<int32_t>& peers) {
  if (rows.bits.empty()) {
    rows.bits.resize(words_ * static_cast<size_t>(ranks_));
    rows.is_used.resize(ranks_);
  }
  std::vector<uint64_t> pattern;
  if (peers.size() > words_) {
    pattern.resize(words_);
    for (const int32_t peer : peers) pattern[peer / 64] |= uint64_t{1} << (peer % 64);
  }
  for (const int32_t rank : row_ranks) {
    if (!rows.is_used[rank]) {
      rows.is_used[rank] = 1;
      rows.used.push_back(rank);
    }
    uint64_t* row = rows.bits.data() + words_ * static_cast<size_t>(rank);
    for (size_t w = 0; w < pattern.size(); ++w) row[w] |= pattern[w];
    if (pattern.empty()) {
      for (const int32_t peer : peers) row[peer / 64] |= uint64_t{1} << (peer % 64);
    }
  }
}

void MessageCounter::drain(Rows& rows, std::vector<int64_t>& totals) {
  for (const int32_t rank : rows.used) {
    uint64_t* row = rows.bits.data() + words_ * static_cast<size_t>(rank);
    row[rank / 64] &= ~(uint64_t{1} << (rank % 64));
    for (size_t w = 0; w < words_; ++w) {
      totals[rank] += std::popcount(row[w]);
      row[w] = 0;
    }
    rows.is_used[rank] = 0;
  }
  rows.used.clear();
}

void MessageCounter::count(std::vector<int64_t>& sent, std::vector<int64_t>& received) {
  if (groups_.size() <= 1 || ranks_ > kMostExactRanks) {
    for (const Group& group : groups_) {
      for (const int32_t rank : group.from) sent[rank] += peers_of(rank, group.to);
      for (const int32_t rank : group.to) received[rank] += peers_of(rank, group.from);
    }
  } else {
    for (const Group& group : groups_) {
      mark(sent_, group.from, group.to);
      mark(received_, group.to, group.from);
    }
    drain(sent_, sent);
    drain(received_, received);
  }
}

std::vector<int32_t> MessageCounter::connected() const {
  std::vector<int32_t> least(ranks_);
  std::iota(least.begin(), least.end(), 0);
  const auto find = [&](int32_t rank) {
    while (least[rank] != rank) rank = least[rank] = least[least[rank]];
    return rank;
  };
  for (const Group& group : groups_) {
    for (const std::vector<int32_t>* side : {&group.from, &group.to}) {
      for (const int32_t rank : *side) {
        const int32_t one = find(rank);
        const int32_t other = find(group.from[0]);
        least[std::max(one, other)] = std::min(one, other);
      }
    }
  }
  for (int32_t rank = 0; rank < ranks_; ++rank) least[rank] = find(rank);
  return least;
}

}  // namespace muster::plan
