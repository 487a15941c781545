// What every rank says it is about to do, side by side: for backends whose messages, once started, hang where ranks
// disagree. All ranks look at the same entries, and so all come to the same cause.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/operation.h"

namespace muster::comm {

// What a rank has to say at its turn.
enum class Word : int32_t { kOperation, kFailed, kAborted, kLeft };

// The entries are plain bytes that belong to the backend, one after another by rank, and may arrive at any time.
class RollCall {
 public:
  // `entries` has room for `ranks` of them, all zero, and outlives this.
  RollCall(std::byte* entries, int32_t rank, int32_t ranks);

  // Bytes of an entry: the operation's name, and what goes to and comes from each rank.
  static int64_t entry_bytes(int32_t ranks);

  std::byte* entry(int32_t rank) const { return entries_ + rank * entry_bytes_; }
  int64_t entry_bytes() const { return entry_bytes_; }

  // Writes this rank's entry of the next call. `text` is a name, a cause or a reason.
  void begin(Word word, std::string_view text);
  void begin(const Posting& posting);

  // Who has not answered the call that began last.
  std::vector<int32_t> missing() const;

  // Once all have answered. The cause if they cannot go on, or leave, together.
  std::optional<std::string> trouble() const;

 private:
  struct Head;
  Head head(int32_t rank) const;
  int64_t bytes(int32_t rank, int64_t column) const;
  void write(Word word, std::string_view text, const Posting* posting);

  std::byte* entries_;
  int32_t rank_;
  int32_t ranks_;
  int64_t entry_bytes_;
  int64_t number_ = 0;  // of the call; the first is 1
};

}  // namespace muster::comm
