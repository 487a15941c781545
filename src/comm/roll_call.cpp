#include "comm/roll_call.h"

#include <atomic>
#include <cstring>
#include <functional>

namespace muster::comm {

// An entry begins with this. Then come, for each rank, the bytes to it and from it, and at the end the number again: an
// entry with both numbers is complete.
struct RollCall::Head {
  int64_t number = 0;
  Word word = Word::kOperation;
  int32_t reserved = 0;
  uint64_t name_hash = 0;  // names may be longer than the text
  char text[488] = {};     // ends with a zero
};

namespace {

constexpr int64_t kHead = 512;
constexpr int64_t kCell = sizeof(int64_t);

int64_t read(const std::byte* at) {
  int64_t value = 0;
  std::memcpy(&value, at, sizeof value);
  return value;
}

}  // namespace

RollCall::RollCall(std::byte* entries, int32_t rank, int32_t ranks)
    : entries_(entries), rank_(rank), ranks_(ranks), entry_bytes_(entry_bytes(ranks)) {}

int64_t RollCall::entry_bytes(int32_t ranks) {
  static_assert(sizeof(Head) == kHead);
  return (kHead + 2 * ranks * kCell + kCell + 15) / 16 * 16;
}

void RollCall::begin(Word word, std::string_view text) { write(word, text, nullptr); }

void RollCall::begin(const Posting& posting) { write(Word::kOperation, posting.name, &posting); }

void RollCall::write(Word word, std::string_view text, const Posting* posting) {
  Head head;
  head.number = ++number_;
  head.word = word;
  head.name_hash = std::hash<std::string_view>()(text);
  text.copy(head.text, sizeof head.text - 1);
  std::byte* at = entry(rank_);
  std::memset(at, 0, static_cast<size_t>(entry_bytes_));
  std::memcpy(at, &head, sizeof head);
  if (posting) {
    for (const Send& send : posting->sends) std::memcpy(at + kHead + 2 * send.peer * kCell, &send.bytes, kCell);
    for (const Receive& receive : posting->receives) {
      std::memcpy(at + kHead + (2 * receive.peer + 1) * kCell, &receive.bytes, kCell);
    }
  }
  std::memcpy(at + entry_bytes_ - kCell, &number_, kCell);
}

RollCall::Head RollCall::head(int32_t rank) const {
  Head head;
  std::memcpy(&head, entry(rank), sizeof head);
  head.text[sizeof head.text - 1] = 0;
  return head;
}

int64_t RollCall::bytes(int32_t rank, int64_t column) const { return read(entry(rank) + kHead + column * kCell); }

std::vector<int32_t> RollCall::missing() const {
  // A device may be writing the entries.
  std::atomic_thread_fence(std::memory_order_acquire);
  std::vector<int32_t> ranks;
  for (int32_t rank = 0; rank < ranks_; ++rank) {
    if (read(entry(rank)) != number_ || read(entry(rank) + entry_bytes_ - kCell) != number_) ranks.push_back(rank);
  }
  return ranks;
}

std::optional<std::string> RollCall::trouble() const {
  std::vector<Head> heads;
  for (int32_t rank = 0; rank < ranks_; ++rank) heads.push_back(head(rank));
  for (const Head& head : heads) {
    if (head.word == Word::kFailed) return head.text;
  }
  std::vector<int32_t> gone;
  const Head* stayed = nullptr;
  for (int32_t rank = 0; rank < ranks_; ++rank) {
    if (heads[rank].word == Word::kAborted) return aborted(rank, heads[rank].text);
    if (heads[rank].word == Word::kLeft) {
      gone.push_back(rank);
    } else if (!stayed) {
      stayed = &heads[rank];
    }
  }
  if (!stayed) return std::nullopt;
  if (!gone.empty()) return left(stayed->text, gone);
  return disagreement(heads);
}

std::optional<std::string> RollCall::disagreement(const std::vector<Head>& heads) const {
  for (int32_t rank = 1; rank < ranks_; ++rank) {
    if (heads[rank].name_hash != heads[0].name_hash || std::strcmp(heads[rank].text, heads[0].text) != 0) {
      return names_differ(heads[rank].text, rank, heads[0].text, 0);
    }
  }
  for (int32_t from = 0; from < ranks_; ++from) {
    for (int32_t to = 0; to < ranks_; ++to) {
      const int64_t sent = bytes(from, 2 * to);
      const int64_t expected = bytes(to, 2 * from + 1);
      if (sent != expected) return bytes_differ(heads[0].text, {to, nullptr, sent}, from, expected);
    }
  }
  return std::nullopt;
}

}  // namespace muster::comm
