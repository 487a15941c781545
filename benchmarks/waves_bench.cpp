// How long does a step take by the number of waves and by which matrices go first, and how much of AdamW shows in it,
// spread over the waves or all in the last one? modded-nanogpt's parameters (#168) with the large matrices of 3 of its
// blocks and a quarter of its vocabulary, on 2 ranks that are threads, one kernel thread each. Its 11 gates go through
// AdamW here, with its 62 scalars. The rows take turns; each starts from the same weights and must end with the same
// bits.
//
//   waves_bench [--rounds N]
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "model/model.h"
#include "muster/optimizer.h"

namespace muster::bench {
namespace {

constexpr int32_t kRanks = 2;
constexpr int kTimedSteps = 3;
constexpr int64_t kVocabulary = 50304;

enum class Part { kAll, kMatrices, kElementwise };

Problem make_problem(Part part) {
  Problem all =
      load_model("modded-nanogpt-168", {.mesh = fmt::format("replicate={},fsdp=1", kRanks), .rules = {}, .set = {}});
  Problem problem = all;
  problem.parameters.clear();
  problem.group_sizes.clear();
  for (Parameter& p : all.parameters) {
    int block = 0;
    const bool in_block = std::sscanf(p.name.c_str(), "blocks.%d.", &block) == 1;
    const bool gate = p.name.find("gate") != std::string::npos;
    if (gate) p.algorithm = Algorithm::kAdamW;
    if (in_block && !gate && block > 3) continue;
    if (p.shape[0] == kVocabulary) p.shape[0] /= 4;
    if (part == Part::kAll || (part == Part::kMatrices) == is_matrix_algorithm(p.algorithm)) {
      problem.parameters.push_back(p);
    }
  }
  return problem;
}

// One rank's weights and gradients.
struct Memory {
  std::vector<std::vector<std::byte>> weights;
  std::vector<std::vector<std::byte>> gradients;
};

// Values of a few binary digits, so that f32 and bf16 hold them alike.
void fill(Dtype dtype, uint32_t seed, std::vector<std::byte>& bytes) {
  const auto width = static_cast<size_t>(byte_size(dtype));
  uint32_t state = seed * 2654435761U + 1;
  for (size_t at = 0; at < bytes.size(); at += width) {
    state = state * 1664525U + 1013904223U;
    const float value = static_cast<float>(static_cast<int32_t>(state >> 25) - 64) / 64;
    uint32_t bits = 0;
    std::memcpy(&bits, &value, 4);
    if (width == 2) bits >>= 16;
    std::memcpy(bytes.data() + at, &bits, width);
  }
}

Memory make_memory(const Problem& problem, int32_t rank) {
  Memory memory;
  for (size_t p = 0; p < problem.parameters.size(); ++p) {
    const Parameter& parameter = problem.parameters[p];
    const auto count = static_cast<size_t>(element_count(parameter.shape));
    const auto seed = static_cast<uint32_t>(p);
    fill(parameter.dtype, seed, memory.weights.emplace_back(count * static_cast<size_t>(byte_size(parameter.dtype))));
    fill(parameter.grad_dtype, 1000 + 7 * seed + static_cast<uint32_t>(rank),
         memory.gradients.emplace_back(count * static_cast<size_t>(byte_size(parameter.grad_dtype))));
  }
  return memory;
}

struct Row {
  std::string name;
  Part part = Part::kAll;
  PlanOptions plan{.cost = CostTable::cpu()};
  std::vector<double> seconds;
  std::vector<double> cpu_seconds;  // of all ranks
  // Of the fastest step, on rank 0.
  StepStats stats;
  size_t waves = 0;
  int64_t scratch_bytes = 0;
};

double least(const std::vector<double>& values) { return *std::min_element(values.begin(), values.end()); }
double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double cpu_now() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

void keep(Row& row, double seconds, double cpu_seconds, const Optimizer& optimizer) {
  if (row.seconds.empty() || seconds < least(row.seconds)) {
    row.stats = optimizer.last_step();
    row.waves = optimizer.plan().waves.size();
    row.scratch_bytes = optimizer.scratch_bytes();
  }
  row.seconds.push_back(seconds);
  row.cpu_seconds.push_back(cpu_seconds);
}

double ms(int64_t ns) { return static_cast<double>(ns) / 1e6; }

// Steps from fresh weights on every rank, all but the first timed from when all are ready to when all are done.
void take_turn(Row& row, std::vector<Memory>& memory, uint64_t& bits) {
  const Problem problem = make_problem(row.part);
  auto communicators = make_local_communicators(kRanks);
  std::vector<std::unique_ptr<Optimizer>> optimizers(kRanks);
  std::vector<std::string> errors(kRanks);
  std::vector<std::thread> threads;
  for (int32_t r = 0; r < kRanks; ++r) {
    threads.emplace_back([&, r] {
      try {
        memory[r] = make_memory(problem, r);
        std::vector<ParameterMemory> weights;
        std::vector<void*> gradients;
        for (size_t p = 0; p < problem.parameters.size(); ++p) {
          const bool bf16 = problem.parameters[p].dtype == Dtype::kBf16;
          weights.push_back(
              {.weight = memory[r].weights[p].data(), .form = bf16 ? WeightForm::kBf16 : WeightForm::kF32});
          gradients.push_back(memory[r].gradients[p].data());
        }
        OptimizerOptions options;
        options.plan = row.plan;
        optimizers[r] = std::make_unique<Optimizer>(problem, options, *communicators[r], weights);
        optimizers[r]->step(gradients);
        for (int step = 0; step < kTimedSteps; ++step) {
          communicators[r]->barrier("ready")->wait();
          const double cpu = cpu_now();
          const auto start = std::chrono::steady_clock::now();
          optimizers[r]->step(gradients);
          communicators[r]->barrier("done")->wait();
          const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
          if (r == 0) keep(row, seconds.count(), cpu_now() - cpu, *optimizers[0]);
        }
      } catch (const std::exception& error) {
        errors[r] = error.what();
        communicators[r]->abort(error.what());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& error : errors) {
    if (!error.empty()) throw std::runtime_error(error);
  }
  bits = 0;
  for (const Memory& rank : memory) {
    for (const auto& weight : rank.weights) {
      for (size_t i = 0; i + 8 <= weight.size(); i += 8) {
        uint64_t word = 0;
        std::memcpy(&word, weight.data() + i, 8);
        bits = (bits ^ word) * 0x100000001b3;
      }
    }
  }
}

std::vector<Row> make_rows() {
  std::vector<Row> rows;
  for (const WaveOrder order : {WaveOrder::kSmallFirst, WaveOrder::kSmallLast}) {
    for (const int32_t waves : {1, 2, 4, 8}) {
      Row row;
      row.name = fmt::format("{} wave{}, small {}", waves, waves == 1 ? "" : "s",
                             order == WaveOrder::kSmallFirst ? "first" : "last");
      row.plan.waves = waves;
      row.plan.wave_order = order;
      rows.push_back(row);
    }
  }
  const auto add = [&](const char* name, Part part, ElementwiseOrder elementwise) {
    Row row;
    row.name = name;
    row.part = part;
    row.plan.waves = 4;
    row.plan.elementwise = elementwise;
    rows.push_back(row);
  };
  add("4 waves, AdamW spread over them", Part::kAll, ElementwiseOrder::kInterleaved);
  add("4 waves, AdamW in the last", Part::kAll, ElementwiseOrder::kLast);
  add("4 waves, no AdamW", Part::kMatrices, ElementwiseOrder::kInterleaved);
  add("AdamW alone", Part::kElementwise, ElementwiseOrder::kInterleaved);
  return rows;
}

// What a row took more than the row without AdamW, in ms: by the least, and by the median over the turns.
std::string exposed(const Row& row, const Row& without, std::vector<double> Row::*seconds) {
  if (row.part != Part::kAll) return "";
  std::vector<double> more;
  for (size_t i = 0; i < row.seconds.size(); ++i) more.push_back((row.*seconds)[i] - (without.*seconds)[i]);
  return fmt::format("{:.0f} / {:.0f}", 1e3 * (least(row.*seconds) - least(without.*seconds)), 1e3 * median(more));
}

void print(const std::vector<Row>& rows) {
  const auto& without = *std::find_if(rows.begin(), rows.end(), [](const Row& r) { return r.part == Part::kMatrices; });
  fmt::print("Times in ms, least / median; CPU time is of both ranks; stages are of the fastest step, on rank 0.\n\n");
  fmt::print("| | waves | step | CPU | AdamW exposed | in CPU time | AdamW stage | waits in + out | scratch, MiB |\n");
  fmt::print("|---|---|---|---|---|---|---|---|---|\n");
  for (const Row& row : rows) {
    fmt::print("| {} | {} | {:.0f} / {:.0f} | {:.0f} / {:.0f} | {} | {} | {:.0f} | {:.0f} + {:.0f} | {:.0f} |\n",
               row.name, row.waves, 1e3 * least(row.seconds), 1e3 * median(row.seconds), 1e3 * least(row.cpu_seconds),
               1e3 * median(row.cpu_seconds), exposed(row, without, &Row::seconds),
               exposed(row, without, &Row::cpu_seconds), ms(row.stats.at(Stage::kElementwise)),
               ms(row.stats.at(Stage::kWaitIn)), ms(row.stats.at(Stage::kWaitOut)),
               static_cast<double>(row.scratch_bytes) / (1 << 20));
  }
}

int run(int rounds) {
  std::vector<Row> rows = make_rows();
  std::vector<Memory> memory(kRanks);
  uint64_t expected = 0;
  for (int round = 0; round < rounds; ++round) {
    for (Row& row : rows) {
      uint64_t bits = 0;
      take_turn(row, memory, bits);
      if (row.part != Part::kAll) continue;
      if (expected == 0) expected = bits;
      if (bits != expected) throw std::runtime_error(fmt::format("{}: other weights than the first row", row.name));
    }
  }
  print(rows);
  return 0;
}

}  // namespace
}  // namespace muster::bench

int main(int argc, char** argv) {
  try {
    int rounds = 3;
    if (argc == 3 && std::string_view(argv[1]) == "--rounds") {
      rounds = std::max(1, std::stoi(argv[2]));
    } else if (argc != 1) {
      throw std::runtime_error("expected --rounds N");
    }
    return muster::bench::run(rounds);
  } catch (const std::exception& error) {
    fmt::print(stderr, "waves_bench: {}\n", error.what());
    return 1;
  }
}
