#include "comm/operation.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/text.h"
#include "muster/error.h"

namespace muster::comm {

namespace {

template <typename Message>
const Message* find(const std::vector<Message>& messages, int32_t peer) {
  const auto at = std::lower_bound(messages.begin(), messages.end(), peer,
                                   [](const Message& message, int32_t rank) { return message.peer < rank; });
  return at != messages.end() && at->peer == peer ? &*at : nullptr;
}

// Checks one rank's messages of the operation `name`.
struct Checker {
  std::string_view name;
  int32_t rank;
  int32_t size;

  // Sorts messages by peer, drops empty ones, and takes out and returns the one to `rank` itself.
  template <typename Message>
  Message take(std::span<const Message> given, std::vector<Message>& taken, std::string_view direction) const {
    for (const Message& message : given) {
      if (message.peer < 0 || message.peer >= size) {
        base::fail("{}: {} rank {}, but there are {} ranks", name, direction, message.peer, size);
      }
      if (message.bytes < 0 || (message.bytes > 0 && message.data == nullptr)) {
        base::fail("{}: {} bytes {} rank {} at {}", name, message.bytes, direction, message.peer,
                   fmt::ptr(message.data));
      }
      if (message.bytes > 0) taken.push_back(message);
    }
    std::sort(taken.begin(), taken.end(), [](const Message& a, const Message& b) { return a.peer < b.peer; });
    const auto twice = std::adjacent_find(taken.begin(), taken.end(),
                                          [](const Message& a, const Message& b) { return a.peer == b.peer; });
    if (twice != taken.end()) base::fail("{}: two messages {} rank {}", name, direction, twice->peer);
    Message self;
    self.peer = rank;
    const auto mine = std::find_if(taken.begin(), taken.end(), [&](const Message& m) { return m.peer == rank; });
    if (mine == taken.end()) return self;
    self = *mine;
    taken.erase(mine);
    return self;
  }
};

}  // namespace

Messages check_messages(std::string name, std::span<const Send> sends, std::span<const Receive> receives, int32_t rank,
                        int32_t size) {
  Messages messages;
  Posting& posting = messages.posting;
  posting.name = std::move(name);
  const Checker checker{.name = posting.name, .rank = rank, .size = size};
  messages.from_self = checker.take(sends, posting.sends, "to");
  messages.to_self = checker.take(receives, posting.receives, "from");
  if (messages.from_self.bytes != messages.to_self.bytes) {
    throw InvalidArgument(bytes_differ(posting.name, messages.from_self, rank, messages.to_self.bytes));
  }
  return messages;
}

const Send* find_send(const Posting& posting, int32_t peer) { return find(posting.sends, peer); }

const Receive* find_receive(const Posting& posting, int32_t peer) { return find(posting.receives, peer); }

Clock::time_point deadline_after(std::chrono::milliseconds timeout) {
  return Clock::now() + std::min<std::chrono::milliseconds>(timeout, std::chrono::hours(24 * 365));
}

void check_options(const CommOptions& options) {
  if (options.timeout <= std::chrono::milliseconds::zero()) {
    base::fail("communicator: timeout is {} ms, not more than zero", options.timeout.count());
  }
}

Failure late(std::string_view name, std::span<const int32_t> ranks, std::chrono::milliseconds timeout) {
  return {fmt::format("{}: {} did not arrive within {} ms", name, rank_list(ranks), timeout.count()),
          ErrorCode::kRankMissing};
}

std::string left(std::string_view name, std::span<const int32_t> ranks) {
  return fmt::format("{}: {} left", name, rank_list(ranks));
}

std::string bytes_differ(std::string_view name, const Send& send, int32_t sender, int64_t expected) {
  return fmt::format("{}: rank {} sends {} bytes to rank {}, which expects {}", name, sender, send.bytes, send.peer,
                     expected);
}

std::string names_differ(std::string_view name, int32_t rank, std::string_view other_name, int32_t other_rank) {
  return fmt::format("ranks disagree: rank {} calls {}, rank {} calls {}", rank, name, other_rank, other_name);
}

std::string aborted(int32_t rank, std::string_view reason) { return fmt::format("rank {} aborted: {}", rank, reason); }

Failure seen_by(const std::string& name, const Failure& cause) {
  return cause.text.find(name) == std::string::npos ? cause.within(name) : cause;
}

std::string rank_list(std::span<const int32_t> ranks) {
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "));
}

}  // namespace muster::comm
