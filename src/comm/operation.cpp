#include "comm/operation.h"

#include <algorithm>

#include <fmt/format.h>

#include "muster/error.h"

namespace muster::comm {

namespace {

template <typename Message>
const Message* find(const std::vector<Message>& messages, int32_t peer) {
  const auto at = std::lower_bound(messages.begin(), messages.end(), peer,
                                   [](const Message& message, int32_t rank) { return message.peer < rank; });
  return at != messages.end() && at->peer == peer ? &*at : nullptr;
}

}  // namespace

const Send* find_send(const Posting& posting, int32_t peer) { return find(posting.sends, peer); }

const Receive* find_receive(const Posting& posting, int32_t peer) { return find(posting.receives, peer); }

Clock::time_point deadline_after(std::chrono::milliseconds timeout) {
  return Clock::now() + std::min<std::chrono::milliseconds>(timeout, std::chrono::hours(24 * 365));
}

void check_options(const CommOptions& options) {
  if (options.timeout <= std::chrono::milliseconds::zero()) {
    throw InvalidArgument(fmt::format("communicator: timeout is {} ms, not more than zero", options.timeout.count()));
  }
}

std::string late(std::string_view name, std::span<const int32_t> ranks, std::chrono::milliseconds timeout) {
  return fmt::format("{}: {} did not arrive within {} ms", name, rank_list(ranks), timeout.count());
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

std::string seen_by(std::string_view name, const std::string& cause) {
  return cause.find(name) == std::string::npos ? fmt::format("{}: {}", name, cause) : cause;
}

std::string rank_list(std::span<const int32_t> ranks) {
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "));
}

}  // namespace muster::comm
