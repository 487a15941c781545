// What ranks of one process share: operations in order, and which ranks have posted them.
//
// The second of a message's two ranks copies it, from the sender's buffer to the receiver's, before its post() returns;
// then both ranks know that it is done. The copy runs outside the lock. While it runs neither rank may free its buffer,
// not even after a failure.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>

#include "comm/operation.h"

namespace muster::comm::local {

// One rank's part of one operation. Guarded by the group's mutex.
struct Post {
  Posting posting;
  int32_t rank = 0;
  int64_t sequence = 0;
  int64_t open = 0;     // messages that are not done
  int64_t copying = 0;  // of these, being copied now
};

class Group {
 public:
  Group(int32_t ranks, std::chrono::milliseconds timeout);

  int32_t size() const { return static_cast<int32_t>(members_.size()); }
  std::chrono::milliseconds timeout() const { return timeout_; }

  // All of these but abort() and leave() throw CommError once the group has failed.
  std::shared_ptr<Post> post(int32_t rank, Posting posting);
  // True once the post is done. A post that is not done at the deadline fails the group.
  bool advance(const Post& post, Clock::time_point deadline);
  void wait(const Post& post, Clock::time_point deadline);
  void abort(int32_t rank, std::string_view reason);
  // The rank will post nothing more.
  void leave(int32_t rank);

 private:
  struct Member {
    std::condition_variable changed;  // one of its posts is done, or the group has failed
    int64_t posts = 0;
    bool left = false;
  };
  struct Operation {
    std::string name;  // given by the first rank to post
    int32_t first = 0;
    int32_t arrived = 0;
    std::vector<std::shared_ptr<Post>> posts;  // by rank
  };
  struct Copy {
    const Send* send;
    const Receive* receive;
    std::shared_ptr<Post> other;
  };

  Operation& operation_of(const Post& post);
  std::vector<Copy> match(const std::shared_ptr<Post>& mine);
  void match_message(const Post& from, const Post& to, const std::shared_ptr<Post>& other, std::vector<Copy>& copies);
  void carry_out(const std::vector<Copy>& copies, Post& mine);
  std::vector<int32_t> missing(const Post& post);
  void fail(Failure cause);
  [[noreturn]] void raise(const std::string& name) const;

  const std::chrono::milliseconds timeout_;
  std::mutex mutex_;
  std::deque<Member> members_;
  std::deque<Operation> operations_;  // that some rank has not posted yet
  int64_t retired_ = 0;               // the sequence number of the first of them
  std::optional<Failure> failure_;
};

}  // namespace muster::comm::local
