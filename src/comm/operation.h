// One rank's part of an operation, and the error texts that all backends share.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "muster/communicator.h"
#include "muster/error.h"

namespace muster::comm {

// The messages to and from other ranks: ascending peers, none empty, none to the rank itself.
struct Posting {
  std::string name;  // "exchange 'wave 0 in'"
  std::vector<Send> sends;
  std::vector<Receive> receives;
};

// The caller's messages, checked: throws InvalidArgument. Empty messages are dropped; the one to itself is separate.
struct Messages {
  Posting posting;
  Send from_self;
  Receive to_self;
};
Messages check_messages(std::string name, std::span<const Send> sends, std::span<const Receive> receives, int32_t rank,
                        int32_t size);

// The message with this peer, or null.
const Send* find_send(const Posting& posting, int32_t peer);
const Receive* find_receive(const Posting& posting, int32_t peer);

using Clock = std::chrono::steady_clock;
// Now plus the timeout; safe for a timeout of centuries.
Clock::time_point deadline_after(std::chrono::milliseconds timeout);
// Throws InvalidArgument unless the timeout is more than zero.
void check_options(const CommOptions& options);

// Causes of a CommError. `name` is that of the operation.
Failure late(std::string_view name, std::span<const int32_t> ranks, std::chrono::milliseconds timeout);
std::string left(std::string_view name, std::span<const int32_t> ranks);
std::string bytes_differ(std::string_view name, const Send& send, int32_t sender, int64_t expected);
std::string names_differ(std::string_view name, int32_t rank, std::string_view other_name, int32_t other_rank);
std::string aborted(int32_t rank, std::string_view reason);

// The cause as the operation `name` reports it: with its own name in front if the cause lies elsewhere.
Failure seen_by(const std::string& name, const Failure& cause);

// "rank 2", "ranks 0, 2, 3"
std::string rank_list(std::span<const int32_t> ranks);

}  // namespace muster::comm
