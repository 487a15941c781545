// A table of what every rank is about to do, for backends whose messages hang if ranks disagree. All ranks read the
// same entries and so find the same cause of failure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "comm/operation.h"

namespace muster::comm {

// What a rank announces in its entry.
enum class Word : int32_t { kOperation, kFailed, kAborted, kLeft };

// Entries are plain bytes that the backend owns, in the order of ranks, and may arrive at any time.
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

  // The ranks that have not answered the last call.
  std::vector<int32_t> missing() const;

  // To call once all have answered: the cause if ranks can neither go on nor leave together.
  std::optional<std::string> trouble() const;

 private:
  struct Head;
  Head head(int32_t rank) const;
  int64_t bytes(int32_t rank, int64_t column) const;
  // Operations by different names, or messages whose sender and receiver expect different bytes.
  std::optional<std::string> disagreement(const std::vector<Head>& heads) const;
  void write(Word word, std::string_view text, const Posting* posting);

  std::byte* entries_;
  int32_t rank_;
  int32_t ranks_;
  int64_t entry_bytes_;
  int64_t number_ = 0;  // of the call; the first is 1
};

}  // namespace muster::comm
