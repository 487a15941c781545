// The contract over NCCL, and operations on streams: all ranks run all cases in step. They share one communicator,
// because making one takes seconds.
#include <gtest/gtest.h>

#include "comm/nccl/nccl_communicator.h"
#include "muster/error.h"
#include "ranks.h"
#include "support/rank_programs.h"

namespace muster::test {
namespace {

using kernels::cuda::check;
using kernels::cuda::DeviceVector;

const CommOptions kOptions{std::chrono::seconds(60)};

std::unique_ptr<Communicator> whole;
std::unique_ptr<Communicator> in_pieces;

using Bytes = std::vector<uint8_t>;

// Nothing for some, a megabyte for others.
int64_t ragged(int32_t from, int32_t to) {
  const int64_t kind = (from + 2 * to) % 4;
  if (kind == 0 && from != to) return 0;
  return kind == 1 ? (1 << 20) + from : 1000 * (from + 1) + to;
}

Bytes payload(int32_t from, int32_t to, int32_t round) {
  Bytes out(static_cast<size_t>(ragged(from, to)));
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = static_cast<uint8_t>((i * 131 + static_cast<size_t>(from * 37 + to * 11 + round * 53)) >> 2);
  }
  return out;
}

// The buffers of a ragged exchange on the device.
class DeviceExchange {
 public:
  explicit DeviceExchange(Communicator& comm) : comm_(comm) {
    for (int32_t peer = 0; peer < comm.size(); ++peer) {
      out_.push_back(std::make_unique<DeviceVector<uint8_t>>(static_cast<size_t>(ragged(comm.rank(), peer))));
      in_.push_back(std::make_unique<DeviceVector<uint8_t>>(static_cast<size_t>(ragged(peer, comm.rank()))));
      sends_.push_back({peer, out_.back()->data(), ragged(comm.rank(), peer)});
      receives_.push_back({peer, in_.back()->data(), ragged(peer, comm.rank())});
    }
  }

  void fill(int32_t round) {
    for (const Send& send : sends_) {
      const Bytes bytes = payload(comm_.rank(), send.peer, round);
      check(cudaMemcpy(out_[send.peer]->data(), bytes.data(), bytes.size(), cudaMemcpyHostToDevice), "cudaMemcpy");
    }
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }
  void enqueue(cudaStream_t stream) { comm_.on_stream()->exchange(sends_, receives_, "ragged", stream); }
  void expect(int32_t round) const {
    for (int32_t peer = 0; peer < comm_.size(); ++peer) {
      EXPECT_TRUE(in_[peer]->values() == payload(peer, comm_.rank(), round)) << "round " << round << " from " << peer;
    }
  }

  std::span<const Send> sends() const { return sends_; }
  std::span<const Receive> receives() const { return receives_; }

 private:
  Communicator& comm_;
  std::vector<std::unique_ptr<DeviceVector<uint8_t>>> out_;
  std::vector<std::unique_ptr<DeviceVector<uint8_t>>> in_;
  std::vector<Send> sends_;
  std::vector<Receive> receives_;
};

TEST(NcclStreams, a_ragged_exchange_of_device_memory_arrives) {
  TestStream stream;
  DeviceExchange exchange(*whole);
  for (int32_t round = 0; round < 3; ++round) {
    exchange.fill(round);
    exchange.enqueue(stream);
    stream.watch(*whole->on_stream(), "ragged");
    exchange.expect(round);
  }
}

TEST(NcclStreams, sums_of_every_rank_wrap) {
  TestStream stream;
  for (const int64_t count : {0, 1, 5, 100000}) {
    std::vector<int64_t> mine(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) mine[i] = INT64_MAX / 2 + i * (whole->rank() + 1);
    const DeviceVector<int64_t> data(mine);
    whole->on_stream()->all_reduce(data.data(), count, "sum", stream);
    stream.watch(*whole->on_stream(), "sum");
    const std::vector<int64_t> sums = data.values();
    for (int64_t i = 0; i < count; ++i) {
      uint64_t sum = 0;
      for (int32_t rank = 0; rank < whole->size(); ++rank) sum += static_cast<uint64_t>(INT64_MAX / 2 + i * (rank + 1));
      ASSERT_EQ(sums[i], static_cast<int64_t>(sum)) << "element " << i << " of " << count;
    }
  }
}

TEST(NcclStreams, a_captured_graph_moves_what_is_there_when_it_runs) {
  TestStream stream;
  DeviceExchange exchange(*whole);
  const DeviceVector<int64_t> sum(std::vector<int64_t>{1, 2, 3});
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t ready = nullptr;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  exchange.enqueue(stream);
  whole->on_stream()->all_reduce(sum.data(), 3, "sum", stream);
  check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  check(cudaGraphInstantiate(&ready, graph, 0), "cudaGraphInstantiate");
  int64_t factor = 1;
  for (int32_t round = 0; round < 3; ++round) {
    exchange.fill(round);
    check(cudaGraphLaunch(ready, stream), "cudaGraphLaunch");
    stream.watch(*whole->on_stream(), "replay");
    exchange.expect(round);
    factor *= whole->size();
    EXPECT_EQ(sum.values(), (std::vector<int64_t>{factor, 2 * factor, 3 * factor}));
    whole->barrier("between replays")->wait();  // host and streams do not mix
  }
  check(cudaGraphExecDestroy(ready), "cudaGraphExecDestroy");
  check(cudaGraphDestroy(graph), "cudaGraphDestroy");
}

TEST(NcclStreams, a_graph_runs_while_host_messages_do) {
  TestStream stream;
  DeviceExchange exchange(*whole);
  exchange.fill(7);
  int64_t data[] = {whole->rank()};
  const auto request = whole->all_reduce(std::span<int64_t>(data), ReduceOp::kMax, "beside");
  exchange.enqueue(stream);
  stream.watch(*whole->on_stream(), "ragged");
  request->wait();
  exchange.expect(7);
  EXPECT_EQ(data[0], whole->size() - 1);
}

TEST(NcclStreams, bad_arguments_are_refused) {
  StreamCommunicator& comm = *whole->on_stream();
  const Send outside[] = {{whole->size(), &comm, 1}};
  EXPECT_THROW(comm.exchange(outside, {}, "outside", nullptr), InvalidArgument);
  EXPECT_THROW(comm.all_reduce(nullptr, 1, "nothing", nullptr), InvalidArgument);
  EXPECT_THROW(comm.all_reduce(nullptr, -1, "negative", nullptr), InvalidArgument);
}

TEST(Nccl, host_operations_take_memory_of_the_device) {
  DeviceExchange exchange(*whole);
  exchange.fill(5);
  whole->exchange(exchange.sends(), exchange.receives(), "device")->wait();
  exchange.expect(5);
}

int run(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const auto mpi = make_mpi_communicator(kOptions);
  claim_a_machine(mpi->rank());
  whole = make_nccl_communicator(*mpi, kOptions);
  comm::nccl::Limits small;
  small.staging_bytes = 4096;
  in_pieces = comm::nccl::make_communicator(*mpi, kOptions, small);
  add_contract_cases("NcclContract", [](const ContractCase& contract) { contract.run(*whole); });
  add_contract_cases("NcclContractInPieces", [](const ContractCase& contract) { contract.run(*in_pieces); });
  print_as(mpi->rank());
  const int status = RUN_ALL_TESTS();
  in_pieces.reset();
  whole.reset();
  return status;
}

}  // namespace
}  // namespace muster::test

int main(int argc, char** argv) {
  using namespace muster::test;
  if (must_skip()) return kSkipped;
  return is_check(argc, argv) ? 0 : run(argc, argv);
}
