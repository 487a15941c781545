#include "comm/collectives.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "comm/reduce.h"
#include "muster/error.h"

namespace muster::comm {

namespace {

// Gathers contributions, and reduces them once all have arrived and every rank has received this one's.
template <typename T>
class Reduction final : public Request {
 public:
  // `own` is this rank's contribution to its own result.
  Reduction(const Communicator& comm, const T* own, T* result, int64_t count, ReduceOp op)
      : result_(result),
        count_(count),
        op_(op),
        scratch_(std::make_unique_for_overwrite<T[]>(static_cast<size_t>((comm.size() - 1) * count))) {
    T* next = scratch_.get();
    for (int32_t rank = 0; rank < comm.size(); ++rank) {
      if (rank == comm.rank()) {
        parts_.push_back(own);
      } else {
        parts_.push_back(next);
        receives_.push_back({rank, next, count * static_cast<int64_t>(sizeof(T))});
        next += count;
      }
    }
  }
  ~Reduction() override {
    try {
      if (messages_) wait();
    } catch (const Error&) {
    }
  }

  std::span<const Receive> receives() const { return receives_; }
  void start(std::unique_ptr<Request> messages) { messages_ = std::move(messages); }

  bool test() override {
    if (!done_ && messages_->test()) finish();
    return done_;
  }
  void wait() override {
    messages_->wait();
    if (!done_) finish();
  }

 private:
  void finish() {
    reduce_in_order<T>(parts_, result_, count_, op_);
    done_ = true;
  }

  T* result_;
  int64_t count_;
  ReduceOp op_;
  std::unique_ptr<T[]> scratch_;
  std::vector<const T*> parts_;
  std::vector<Receive> receives_;
  std::unique_ptr<Request> messages_;
  bool done_ = false;
};

void check_bytes(int64_t bytes, std::string_view kind, std::string_view label) {
  if (bytes < 0) throw InvalidArgument(fmt::format("{} '{}': {} bytes", kind, label, bytes));
}

}  // namespace

std::unique_ptr<Request> Collectives::start(std::string_view kind, std::string_view label, std::span<const Send> sends,
                                            std::span<const Receive> receives) {
  Messages messages = check_messages(fmt::format("{} '{}'", kind, label), sends, receives, rank(), size());
  std::unique_ptr<Request> request = post(std::move(messages.posting));
  // In place there is nothing to copy, and peers may be reading it already.
  const Send& self = messages.from_self;
  if (self.data != messages.to_self.data) copy(messages.to_self.data, self.data, self.bytes);
  return request;
}

void Collectives::copy(void* to, const void* from, int64_t bytes) { std::memcpy(to, from, static_cast<size_t>(bytes)); }

std::unique_ptr<Request> Collectives::exchange(std::span<const Send> sends, std::span<const Receive> receives,
                                               std::string_view label) {
  return start("exchange", label, sends, receives);
}

std::unique_ptr<Request> Collectives::all_gather(const void* mine, void* all, int64_t bytes, std::string_view label) {
  check_bytes(bytes, "all_gather", label);
  std::vector<Send> sends;
  std::vector<Receive> receives;
  for (int32_t peer = 0; peer < size(); ++peer) {
    sends.push_back({peer, mine, bytes});
    receives.push_back({peer, static_cast<std::byte*>(all) + peer * bytes, bytes});
  }
  return start("all_gather", label, sends, receives);
}

std::unique_ptr<Request> Collectives::reduce_scatter(const float* all, float* mine, std::span<const int64_t> parts,
                                                     ReduceOp op, std::string_view label) {
  if (static_cast<int64_t>(parts.size()) != size() || std::ranges::any_of(parts, [](int64_t n) { return n < 0; })) {
    throw InvalidArgument(
        fmt::format("reduce_scatter '{}': parts are {} for {} ranks", label, fmt::join(parts, ", "), size()));
  }
  std::vector<Send> sends;
  const float* own = nullptr;
  const float* next = all;
  for (int32_t peer = 0; peer < size(); next += parts[peer], ++peer) {
    if (peer == rank()) {
      own = next;
    } else {
      sends.push_back({peer, next, parts[peer] * static_cast<int64_t>(sizeof(float))});
    }
  }
  auto reduction = std::make_unique<Reduction<float>>(*this, own, mine, parts[rank()], op);
  reduction->start(start("reduce_scatter", label, sends, reduction->receives()));
  return reduction;
}

template <typename T>
std::unique_ptr<Request> Collectives::reduce(std::span<T> data, ReduceOp op, std::string_view label) {
  std::vector<Send> sends;
  for (int32_t peer = 0; peer < size(); ++peer) {
    if (peer != rank()) sends.push_back({peer, data.data(), static_cast<int64_t>(data.size_bytes())});
  }
  auto reduction =
      std::make_unique<Reduction<T>>(*this, data.data(), data.data(), static_cast<int64_t>(data.size()), op);
  reduction->start(start("all_reduce", label, sends, reduction->receives()));
  return reduction;
}

std::unique_ptr<Request> Collectives::all_reduce(std::span<float> data, ReduceOp op, std::string_view label) {
  return reduce(data, op, label);
}
std::unique_ptr<Request> Collectives::all_reduce(std::span<double> data, ReduceOp op, std::string_view label) {
  return reduce(data, op, label);
}
std::unique_ptr<Request> Collectives::all_reduce(std::span<int64_t> data, ReduceOp op, std::string_view label) {
  return reduce(data, op, label);
}

std::unique_ptr<Request> Collectives::broadcast(void* data, int64_t bytes, int32_t root, std::string_view label) {
  check_bytes(bytes, "broadcast", label);
  if (root < 0 || root >= size()) {
    throw InvalidArgument(fmt::format("broadcast '{}': root is rank {}, but there are {} ranks", label, root, size()));
  }
  std::vector<Send> sends;
  std::vector<Receive> receives;
  if (rank() != root) {
    receives.push_back({root, data, bytes});
  } else {
    for (int32_t peer = 0; peer < size(); ++peer) {
      if (peer != root) sends.push_back({peer, data, bytes});
    }
  }
  return start("broadcast", label, sends, receives);
}

std::unique_ptr<Request> Collectives::barrier(std::string_view label) {
  // One byte from every rank. The values are not read, so all calls may share one array.
  static const std::byte kHere{1};
  struct Arrivals final : Request {
    ~Arrivals() override = default;
    bool test() override { return messages->test(); }
    void wait() override { messages->wait(); }
    std::vector<std::byte> bytes;
    std::unique_ptr<Request> messages;  // destroyed first: it may still be writing
  };
  auto arrivals = std::make_unique<Arrivals>();
  arrivals->bytes.resize(static_cast<size_t>(size()));
  std::vector<Send> sends;
  std::vector<Receive> receives;
  for (int32_t peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    sends.push_back({peer, &kHere, 1});
    receives.push_back({peer, &arrivals->bytes[peer], 1});
  }
  arrivals->messages = start("barrier", label, sends, receives);
  return arrivals;
}

}  // namespace muster::comm
