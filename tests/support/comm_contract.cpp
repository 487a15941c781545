#include "support/comm_contract.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "muster/error.h"

namespace muster::test {

namespace {

// What rank `from` gives rank `to` at `index`: differs for every route, so that a wrong one shows.
uint8_t payload(int32_t from, int32_t to, int64_t index, int64_t salt) {
  uint64_t x = static_cast<uint64_t>(from) * 1000003 + static_cast<uint64_t>(to) * 7919 +
               static_cast<uint64_t>(index) * 2654435761u + static_cast<uint64_t>(salt) * 40503;
  x ^= x >> 17;
  return static_cast<uint8_t>((x * 0x9e3779b97f4a7c15u) >> 56);
}

// One ragged exchange with its buffers. bytes(from, to) is alike on all ranks.
class Ragged {
 public:
  using Bytes = std::function<int64_t(int32_t from, int32_t to)>;

  Ragged(Communicator& comm, const Bytes& bytes, int64_t salt) : rank_(comm.rank()), salt_(salt) {
    for (int32_t peer = comm.size() - 1; peer >= 0; --peer) {  // any order will do
      std::vector<uint8_t> out(static_cast<size_t>(bytes(rank_, peer)));
      for (size_t i = 0; i < out.size(); ++i) out[i] = payload(rank_, peer, static_cast<int64_t>(i), salt);
      out_.push_back(std::move(out));
      // One byte more, to see that nobody writes it.
      in_.emplace_back(static_cast<size_t>(bytes(peer, rank_)) + 1, uint8_t{0xA5});
      peers_.push_back(peer);
    }
    std::vector<Send> sends;
    std::vector<Receive> receives;
    for (size_t i = 0; i < peers_.size(); ++i) {
      sends.push_back({peers_[i], out_[i].data(), static_cast<int64_t>(out_[i].size())});
      receives.push_back({peers_[i], in_[i].data(), static_cast<int64_t>(in_[i].size()) - 1});
    }
    request_ = comm.exchange(sends, receives, fmt::format("ragged {}", salt));
  }

  Request& request() { return *request_; }

  void expect() const {
    for (size_t i = 0; i < peers_.size(); ++i) {
      int64_t wrong = 0;
      for (size_t j = 0; j + 1 < in_[i].size(); ++j) {
        wrong += in_[i][j] != payload(peers_[i], rank_, static_cast<int64_t>(j), salt_);
      }
      EXPECT_EQ(wrong, 0) << "bytes of " << in_[i].size() - 1 << " from rank " << peers_[i] << " to rank " << rank_;
      EXPECT_EQ(in_[i].back(), 0xA5) << "written past the message from rank " << peers_[i] << " to rank " << rank_;
    }
  }

 private:
  int32_t rank_;
  int64_t salt_;
  std::vector<int32_t> peers_;
  std::vector<std::vector<uint8_t>> out_;
  std::vector<std::vector<uint8_t>> in_;
  std::unique_ptr<Request> request_;
};

void exchange(Communicator& comm, const Ragged::Bytes& bytes, int64_t salt) {
  Ragged ragged(comm, bytes, salt);
  ragged.request().wait();
  ragged.expect();
  ragged.request().wait();  // twice is harmless
  EXPECT_TRUE(ragged.request().test());
}

int64_t uneven(int32_t from, int32_t to) { return (from * 37 + to * 101) % 257; }

void exchanges_of_every_size(Communicator& comm) {
  for (const int64_t bytes : {0, 1, 1000, 4096, 70000, 1 << 20}) {
    exchange(
        comm, [&](int32_t, int32_t) { return bytes; }, bytes);
  }
  exchange(comm, uneven, 1);
}

void exchanges_with_empty_ranks(Communicator& comm) {
  const int32_t ranks = comm.size();
  // Odd ranks have nothing to send; the last receives nothing; only rank 0 has anything; only to the next; to oneself.
  exchange(
      comm, [](int32_t from, int32_t to) { return from % 2 ? 0 : uneven(from, to); }, 1);
  exchange(
      comm, [&](int32_t from, int32_t to) { return to == ranks - 1 ? 0 : uneven(from, to); }, 2);
  exchange(
      comm, [](int32_t from, int32_t to) { return from == 0 ? 5000 + to : 0; }, 3);
  exchange(
      comm, [&](int32_t from, int32_t to) { return to == (from + 1) % ranks ? 99 : 0; }, 4);
  exchange(
      comm, [](int32_t from, int32_t to) { return from == to ? 12345 : 0; }, 5);
  comm.exchange({}, {}, "nothing at all")->wait();
}

void many_exchanges_in_flight(Communicator& comm) {
  std::vector<std::unique_ptr<Ragged>> flying;
  for (int64_t salt = 0; salt < 12; ++salt) {
    const auto bytes = [&](int32_t from, int32_t to) { return salt % 4 == 3 ? 40000 + from : uneven(from, to) * salt; };
    flying.push_back(std::make_unique<Ragged>(comm, bytes, salt));
  }
  // The last first, and some by polling.
  for (size_t i = flying.size(); i-- > 0;) {
    if (i % 3 == 0) {
      while (!flying[i]->request().test()) {
      }
    }
    flying[i]->request().wait();
    flying[i]->expect();
  }
}

void requests_destroyed_before_they_are_done(Communicator& comm) {
  std::vector<float> data(1000, static_cast<float>(comm.rank() + 1));
  { const auto request = comm.all_reduce(std::span(data), ReduceOp::kSum, "dropped"); }
  const auto ranks = static_cast<float>(comm.size());
  EXPECT_EQ(data[999], ranks * (ranks + 1) / 2) << "the destructor waits";
  { const Ragged dropped(comm, uneven, 77); }
  exchange(comm, uneven, 78);
}

void random_exchanges(Communicator& comm) {
  std::mt19937_64 random(20240607);  // the same on all ranks
  for (int64_t round = 0; round < 300; ++round) {
    const uint64_t seed = random();
    const auto bytes = [&](int32_t from, int32_t to) -> int64_t {
      std::mt19937_64 mine(seed + static_cast<uint64_t>(from * 1000 + to));
      const uint64_t kind = mine() % 8;
      if (kind < 3) return 0;
      return static_cast<int64_t>(mine() % (kind == 7 && round % 10 == 0 ? 100000 : 600));
    };
    exchange(comm, bytes, round);
  }
}

void gathers(Communicator& comm) {
  for (const int64_t bytes : {0, 1, 13, 4096, 100000}) {
    std::vector<uint8_t> mine(static_cast<size_t>(bytes));
    for (int64_t i = 0; i < bytes; ++i) mine[i] = payload(comm.rank(), 0, i, bytes);
    std::vector<uint8_t> all(static_cast<size_t>(bytes * comm.size()));
    comm.all_gather(mine.data(), all.data(), bytes, "gather")->wait();
    std::vector<uint8_t> in_place(all.size());
    if (bytes > 0) std::memcpy(&in_place[comm.rank() * bytes], mine.data(), mine.size());
    comm.all_gather(in_place.data() + comm.rank() * bytes, in_place.data(), bytes, "gather in place")->wait();
    for (int32_t rank = 0; rank < comm.size(); ++rank) {
      for (int64_t i = 0; i < bytes; ++i) {
        ASSERT_EQ(all[rank * bytes + i], payload(rank, 0, i, bytes)) << "byte " << i << " of rank " << rank;
      }
    }
    EXPECT_EQ(all, in_place);
  }
}

// Values whose sum depends on the order in which it is taken.
template <typename T>
T value(int32_t rank, int64_t index) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(payload(rank, 0, index, 5)) - 128 + (static_cast<T>(rank) << 40);
  } else {
    const double scale = std::ldexp(1.0, payload(rank, 1, index, 6) % 60 - 30);
    return static_cast<T>((payload(rank, 2, index, 7) - 127.3) * scale);
  }
}

template <typename T>
T ordered(int32_t ranks, int64_t index, ReduceOp op) {
  T result = value<T>(0, index);
  for (int32_t rank = 1; rank < ranks; ++rank) {
    const T next = value<T>(rank, index);
    if (op == ReduceOp::kSum) {
      result = result + next;
    } else {
      result = op == ReduceOp::kMin ? std::min(result, next) : std::max(result, next);
    }
  }
  return result;
}

constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax};

template <typename T>
void reduces(Communicator& comm) {
  for (const int64_t count : {0, 1, 7, 1023, 1024, 5000}) {
    for (const ReduceOp op : kOps) {
      std::vector<T> data(static_cast<size_t>(count));
      for (int64_t i = 0; i < count; ++i) data[i] = value<T>(comm.rank(), i);
      comm.all_reduce(std::span(data), op, "sum")->wait();
      for (int64_t i = 0; i < count; ++i) {
        const T expected = ordered<T>(comm.size(), i, op);
        ASSERT_EQ(std::memcmp(&data[i], &expected, sizeof(T)), 0)
            << "element " << i << ": " << data[i] << " is not " << expected << " to the bit";
      }
    }
  }
}

void nan_wins(Communicator& comm) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (int32_t whose = 0; whose < comm.size(); ++whose) {
    for (const ReduceOp op : kOps) {
      float data[] = {comm.rank() == whose ? nan : static_cast<float>(comm.rank())};
      comm.all_reduce(std::span<float>(data), op, "nan")->wait();
      EXPECT_TRUE(std::isnan(data[0])) << "NaN of rank " << whose << " is lost";
    }
  }
}

void reduce_scatters(Communicator& comm) {
  for (const int64_t scale : {0, 1, 700}) {
    for (const ReduceOp op : kOps) {
      std::vector<int64_t> parts;
      int64_t before = 0;
      int64_t total = 0;
      for (int32_t rank = 0; rank < comm.size(); ++rank) {
        parts.push_back(rank % 3 == 1 ? 0 : scale * (rank + 1));
        if (rank < comm.rank()) before += parts.back();
        total += parts.back();
      }
      std::vector<float> all(static_cast<size_t>(total));
      for (int64_t i = 0; i < total; ++i) all[i] = value<float>(comm.rank(), i);
      std::vector<float> mine(static_cast<size_t>(parts[comm.rank()]));
      comm.reduce_scatter(all.data(), mine.data(), parts, op, "scatter")->wait();
      for (size_t i = 0; i < mine.size(); ++i) {
        const float expected = ordered<float>(comm.size(), before + static_cast<int64_t>(i), op);
        ASSERT_EQ(std::memcmp(&mine[i], &expected, sizeof expected), 0) << "element " << i;
      }
    }
  }
}

void broadcasts(Communicator& comm) {
  for (int32_t root = 0; root < comm.size(); ++root) {
    for (const int64_t bytes : {0, 1, 10000}) {
      std::vector<uint8_t> data(static_cast<size_t>(bytes));
      for (int64_t i = 0; i < bytes; ++i) data[i] = payload(comm.rank(), root, i, 3);
      comm.broadcast(data.data(), bytes, root, "broadcast")->wait();
      for (int64_t i = 0; i < bytes; ++i) ASSERT_EQ(data[i], payload(root, root, i, 3)) << "byte " << i;
    }
  }
}

void barriers(Communicator& comm) {
  for (int i = 0; i < 50; ++i) comm.barrier("barrier")->wait();
}

void different_collectives_in_flight(Communicator& comm) {
  std::vector<double> sums(3000);
  for (size_t i = 0; i < sums.size(); ++i) sums[i] = value<double>(comm.rank(), static_cast<int64_t>(i));
  std::vector<int32_t> ranks(static_cast<size_t>(comm.size()));
  const int32_t mine = comm.rank() + 1;
  int32_t root = comm.rank() * 11;
  const auto reduced = comm.all_reduce(std::span(sums), ReduceOp::kSum, "sums");
  Ragged ragged(comm, uneven, 9);
  const auto gathered = comm.all_gather(&mine, ranks.data(), sizeof mine, "ranks");
  const auto sent = comm.broadcast(&root, sizeof root, comm.size() - 1, "root");
  comm.barrier("all there")->wait();
  sent->wait();
  gathered->wait();
  ragged.request().wait();
  while (!reduced->test()) {
  }
  EXPECT_EQ(root, (comm.size() - 1) * 11);
  for (int32_t rank = 0; rank < comm.size(); ++rank) EXPECT_EQ(ranks[rank], rank + 1);
  ragged.expect();
  EXPECT_EQ(sums[2999], ordered<double>(comm.size(), 2999, ReduceOp::kSum));
}

// A caller's mistake is reported before anything moves, and the communicator lives on.
void bad_arguments(Communicator& comm) {
  uint8_t byte = 0;
  const int32_t size = comm.size();
  const Send twice[] = {{0, &byte, 1}, {0, &byte, 1}};
  const Send outside[] = {{size, &byte, 1}};
  const Send negative[] = {{0, &byte, -1}};
  const Send nowhere[] = {{0, nullptr, 1}};
  const Send to_self[] = {{comm.rank(), &byte, 1}};
  EXPECT_THROW(comm.exchange(twice, {}, "twice"), InvalidArgument);
  EXPECT_THROW(comm.exchange(outside, {}, "outside"), InvalidArgument);
  EXPECT_THROW(comm.exchange(negative, {}, "negative"), InvalidArgument);
  EXPECT_THROW(comm.exchange(nowhere, {}, "nowhere"), InvalidArgument);
  EXPECT_THROW(comm.exchange(to_self, {}, "nobody receives"), InvalidArgument);
  EXPECT_THROW(comm.broadcast(&byte, 1, size, "no such root"), InvalidArgument);
  EXPECT_THROW(comm.all_gather(&byte, &byte, -1, "negative"), InvalidArgument);
  EXPECT_THROW(comm.reduce_scatter(nullptr, nullptr, {}, ReduceOp::kSum, "parts"), InvalidArgument);
  comm.barrier("alive")->wait();
}

}  // namespace

const std::vector<ContractCase>& contract_cases() {
  static const std::vector<ContractCase> cases = {
      {"exchanges_of_every_size_arrive", exchanges_of_every_size},
      {"exchanges_with_empty_ranks_arrive", exchanges_with_empty_ranks},
      {"many_exchanges_may_be_in_flight", many_exchanges_in_flight},
      {"a_dropped_request_waits", requests_destroyed_before_they_are_done},
      {"random_exchanges_arrive", random_exchanges},
      {"all_gather_orders_by_rank", gathers},
      {"all_reduce_of_float_sums_in_rank_order", reduces<float>},
      {"all_reduce_of_double_sums_in_rank_order", reduces<double>},
      {"all_reduce_of_int64_sums_in_rank_order", reduces<int64_t>},
      {"nan_wins_a_reduction", nan_wins},
      {"reduce_scatter_sums_in_rank_order", reduce_scatters},
      {"broadcast_reaches_all", broadcasts},
      {"barriers_pass", barriers},
      {"different_collectives_may_be_in_flight", different_collectives_in_flight},
      {"bad_arguments_are_refused", bad_arguments},
  };
  return cases;
}

}  // namespace muster::test
