// How fast are checkpoints? The checksum alone in memory; then saving and loading 512 MiB on 4 ranks, whose bound is
// the disk of the temporary directory (TMPDIR) and, for a load right after, the page cache.
#include <filesystem>
#include <thread>
#include <unistd.h>

#include <benchmark/benchmark.h>

#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/checksum.h"

namespace muster::engine {
namespace {

constexpr int32_t kRanks = 4;
constexpr int64_t kTensors = 8;
constexpr int64_t kRows = 4096;
constexpr int64_t kColumns = 4096;
constexpr int64_t kBytes = kTensors * kRows * kColumns * 4;

void checksum_of_width(benchmark::State& state) {
  const int64_t width = state.range(0);
  const std::vector<std::byte> data(size_t{1} << 20, std::byte{7});
  const auto elements = static_cast<int64_t>(data.size()) / width;
  for (auto _ : state) benchmark::DoNotOptimize(checksum(data.data(), elements, 12345, width));
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * data.size()));
}
BENCHMARK(checksum_of_width)->Arg(2)->Arg(4)->Arg(8);

// A rank's rows or columns of all tensors.
struct Shard {
  Shard(int32_t rank, bool columns) : memory(static_cast<size_t>(kBytes / kRanks / 4)) {
    const int64_t mine = kRows * kColumns / kRanks;
    for (int64_t t = 0; t < kTensors; ++t) {
      auto* const data = reinterpret_cast<std::byte*>(memory.data() + t * mine);
      const int64_t cut = kColumns / kRanks;
      const StateBlock block = columns ? StateBlock{kRows, cut, rank * cut, kColumns, data, cut}
                                       : StateBlock{kRows / kRanks, kColumns, rank * mine, kColumns, data, kColumns};
      StateShard& tensor = tensors.emplace_back();
      tensor.info.name = "t" + std::to_string(t);
      tensor.info.shape = {kRows, kColumns};
      tensor.blocks = {block};
    }
  }
  std::vector<float> memory;
  std::vector<StateShard> tensors;
};

template <typename Body>
void on_ranks(std::vector<std::unique_ptr<Communicator>>& communicators, Body body) {
  std::vector<std::thread> threads;
  for (auto& comm : communicators) threads.emplace_back([&] { body(*comm); });
  for (std::thread& thread : threads) thread.join();
}

void save_and_load(benchmark::State& state) {
  const bool columns = state.range(0) != 0;
  const bool load = state.range(1) != 0;
  const std::string directory =
      std::filesystem::temp_directory_path() / ("muster_checkpoint_bench_" + std::to_string(::getpid()));
  auto communicators = make_local_communicators(kRanks);
  std::vector<Shard> shards;
  for (int32_t rank = 0; rank < kRanks; ++rank) {
    shards.emplace_back(rank, columns);
    for (size_t i = 0; i < shards.back().memory.size(); ++i) {
      shards.back().memory[i] = static_cast<float>(i * 7 + static_cast<size_t>(rank));
    }
  }
  const auto save_all = [&] {
    on_ranks(communicators,
             [&](Communicator& comm) { save_checkpoint(directory, {}, shards[comm.rank()].tensors, comm); });
  };
  const auto load_all = [&] {
    on_ranks(communicators, [&](Communicator& comm) { load_checkpoint(directory, shards[comm.rank()].tensors, comm); });
  };
  if (load) save_all();
  for (auto _ : state) load ? load_all() : save_all();
  // What was read back is what was written, or this throws.
  load_all();
  for (const Shard& shard : shards) {
    if (shard.memory[1] - shard.memory[0] != 7) state.SkipWithError("other values came back");
  }
  std::filesystem::remove_all(directory);
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations()) * kBytes);
}
BENCHMARK(save_and_load)
    ->ArgNames({"columns", "load"})
    ->ArgsProduct({{0, 1}, {0, 1}})
    ->Iterations(3)
    ->MeasureProcessCPUTime()
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace muster::engine
