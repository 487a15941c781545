#include "comm/local/group.h"

#include <cstring>
#include <utility>

#include "muster/error.h"

namespace muster::comm::local {

Group::Group(int32_t ranks, std::chrono::milliseconds timeout)
    : timeout_(timeout), members_(static_cast<size_t>(ranks)) {}

std::shared_ptr<Post> Group::post(int32_t rank, Posting posting) {
  auto mine = std::make_shared<Post>();
  mine->rank = rank;
  mine->open = static_cast<int64_t>(posting.sends.size() + posting.receives.size());
  mine->posting = std::move(posting);
  std::vector<Copy> copies;
  {
    const std::lock_guard lock(mutex_);
    if (!failure_) {
      mine->sequence = members_[rank].posts++;
      copies = match(mine);
    }
    if (failure_) raise(mine->posting.name);
    mine->copying = static_cast<int64_t>(copies.size());
    for (const Copy& copy : copies) ++copy.other->copying;
    while (!operations_.empty() && operations_.front().arrived == size()) {
      operations_.pop_front();
      ++retired_;
    }
  }
  carry_out(copies, *mine);
  return mine;
}

Group::Operation& Group::operation_of(const Post& post) {
  while (post.sequence - retired_ >= static_cast<int64_t>(operations_.size())) {
    Operation operation;
    operation.posts.resize(members_.size());
    operations_.push_back(std::move(operation));
  }
  return operations_[static_cast<size_t>(post.sequence - retired_)];
}

// Enters the post into its operation and finds the messages whose other side is there already.
std::vector<Group::Copy> Group::match(const std::shared_ptr<Post>& mine) {
  Operation& operation = operation_of(*mine);
  const std::string& name = mine->posting.name;
  if (operation.arrived == 0) {
    operation.name = name;
    operation.first = mine->rank;
  } else if (operation.name != name) {
    fail(names_differ(name, mine->rank, operation.name, operation.first));
    return {};
  }
  operation.posts[mine->rank] = mine;
  ++operation.arrived;

  std::vector<Copy> copies;
  std::vector<int32_t> gone;
  for (int32_t peer = 0; peer < size() && !failure_; ++peer) {
    const std::shared_ptr<Post>& other = operation.posts[peer];
    if (peer == mine->rank) continue;
    if (other) {
      match_message(*mine, *other, other, copies);
      match_message(*other, *mine, other, copies);
    } else if (members_[peer].left && (find_send(mine->posting, peer) || find_receive(mine->posting, peer))) {
      gone.push_back(peer);
    }
  }
  if (!gone.empty()) fail(left(name, gone));
  return copies;
}

void Group::match_message(const Post& from, const Post& to, const std::shared_ptr<Post>& other,
                          std::vector<Copy>& copies) {
  const Send* send = find_send(from.posting, to.rank);
  const Receive* receive = find_receive(to.posting, from.rank);
  const int64_t sent = send ? send->bytes : 0;
  const int64_t expected = receive ? receive->bytes : 0;
  if (sent != expected) {
    fail(bytes_differ(from.posting.name, {to.rank, nullptr, sent}, from.rank, expected));
  } else if (sent > 0) {
    copies.push_back({send, receive, other});
  }
}

void Group::carry_out(const std::vector<Copy>& copies, Post& mine) {
  for (const Copy& copy : copies) {
    std::memcpy(copy.receive->data, copy.send->data, static_cast<size_t>(copy.send->bytes));
    const std::lock_guard lock(mutex_);
    for (Post* post : {&mine, copy.other.get()}) {
      --post->copying;
      --post->open;
    }
    members_[copy.other->rank].changed.notify_all();
  }
}

bool Group::advance(const Post& post, Clock::time_point deadline) {
  const std::lock_guard lock(mutex_);
  if (post.open == 0) return true;
  if (!failure_ && Clock::now() >= deadline) {
    if (const std::vector<int32_t> ranks = missing(post); !ranks.empty()) {
      fail(late(post.posting.name, ranks, timeout_));
    }
  }
  if (failure_ && post.copying == 0) raise(post.posting.name);
  return false;
}

void Group::wait(const Post& post, Clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  std::condition_variable& changed = members_[post.rank].changed;
  while (post.open > 0) {
    if (failure_) {
      if (post.copying == 0) raise(post.posting.name);
      changed.wait(lock);
    } else if (Clock::now() < deadline) {
      changed.wait_until(lock, deadline);
    } else if (const std::vector<int32_t> ranks = missing(post); !ranks.empty()) {
      fail(late(post.posting.name, ranks, timeout_));
    } else {
      changed.wait(lock);  // all ranks have posted and are copying
    }
  }
}

// The ranks this post has messages with that have not posted. Empty if all that is open is being copied.
std::vector<int32_t> Group::missing(const Post& post) {
  std::vector<int32_t> ranks;
  if (post.sequence < retired_) return ranks;
  const Operation& operation = operation_of(post);
  for (int32_t peer = 0; peer < size(); ++peer) {
    if (operation.posts[peer]) continue;
    if (find_send(post.posting, peer) || find_receive(post.posting, peer)) ranks.push_back(peer);
  }
  return ranks;
}

void Group::abort(int32_t rank, std::string_view reason) {
  const std::lock_guard lock(mutex_);
  fail(aborted(rank, reason));
}

void Group::leave(int32_t rank) {
  const std::lock_guard lock(mutex_);
  members_[rank].left = true;
  for (size_t i = 0; i < operations_.size() && !failure_; ++i) {
    for (const std::shared_ptr<Post>& post : operations_[i].posts) {
      if (!post || operations_[i].posts[rank]) continue;
      if (find_send(post->posting, rank) || find_receive(post->posting, rank)) {
        fail(left(post->posting.name, std::vector{rank}));
        break;
      }
    }
  }
}

void Group::fail(Failure cause) {
  if (failure_) return;
  failure_ = std::move(cause);
  for (Member& member : members_) member.changed.notify_all();
}

void Group::raise(const std::string& name) const { throw CommError(seen_by(name, *failure_)); }

}  // namespace muster::comm::local
