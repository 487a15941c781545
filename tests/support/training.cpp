#include "support/training.h"

#include <bit>
#include <cstring>
#include <map>
#include <thread>

#include <fmt/format.h>

#include "muster/error.h"
#include "support/device_copies.h"
#include "support/oracle.h"
#include "support/run_ranks.h"

namespace muster::test {

namespace {

uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

template <typename Value>
std::vector<std::byte> filled(Dtype dtype, const std::vector<int64_t>& elements, Value of) {
  const auto width = static_cast<size_t>(byte_size(dtype));
  std::vector<std::byte> out(elements.size() * width);
  for (size_t i = 0; i < elements.size(); ++i) store(dtype, of(elements[i]), out.data() + i * width);
  return out;
}

// Zeros for the state that a rank keeps of a parameter.
void give_state(const Training& t, size_t p, int32_t rank, DeviceCopies& copies, ParameterMemory& memory) {
  const Parameter& parameter = t.problem.parameters[p];
  const size_t elements = held_elements(t.problem, rank)[p].size();
  const bool matrix = is_matrix_algorithm(parameter.algorithm);
  const auto width = static_cast<size_t>(matrix ? byte_size(t.options.momentum) : 4);
  std::vector<std::byte> zeros(elements * width);
  memory.momentum = copies.keep(zeros);
  zeros.assign(parameter.algorithm == Algorithm::kAdamW ? elements * 4 : 0, {});
  memory.second = copies.keep(zeros);
  const StatisticsLayout statistics = statistics_layout(t.problem, static_cast<int32_t>(p), rank);
  zeros.assign(statistics.shape.empty() ? 0 : static_cast<size_t>(element_count(statistics.local_shape)) * 4, {});
  memory.statistics = copies.keep(zeros);
}

}  // namespace

float made_up(size_t parameter, int64_t element, uint64_t salt) {
  const uint64_t bits = mix(mix(parameter * 1'000'003 + salt) + static_cast<uint64_t>(element) * 0x9e3779b97f4a7c15);
  return static_cast<float>(static_cast<int64_t>(bits >> 40)) / 8388608.0F - 1.0F;
}

void store(Dtype dtype, float value, std::byte* to) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (dtype == Dtype::kF32) {
    std::memcpy(to, &bits, 4);
  } else {
    const auto half = static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
    std::memcpy(to, &half, 2);
  }
}

float rounded(Dtype dtype, float value) {
  std::byte bytes[4] = {};
  store(dtype, value, bytes);
  uint32_t bits = 0;
  std::memcpy(&bits, bytes, 4);
  if (dtype != Dtype::kF32) bits = (bits & 0xffff) << 16;
  return std::bit_cast<float>(bits);
}

Training training(Problem problem) {
  Training t;
  t.problem = std::move(problem);
  t.gradient = [](int32_t, size_t p, int64_t element, int step) {
    return made_up(p, element, 100 + static_cast<uint64_t>(step));
  };
  return t;
}

std::vector<std::vector<int64_t>> held_elements(const Problem& problem, int32_t rank) {
  std::vector<std::vector<int64_t>> out;
  for (const Parameter& parameter : problem.parameters) {
    const Mesh& mesh = problem.meshes[parameter.layout.mesh];
    out.emplace_back();
    for (int32_t position = 0; position < mesh.size(); ++position) {
      if (mesh.rank_at(position) != rank) continue;
      out.back() = shard_elements(mesh, parameter.layout, parameter.shape, position);
    }
  }
  return out;
}

RankMemory train_rank(const Training& t, Communicator& communicator) {
  RankMemory mine;
  const int32_t rank = communicator.rank();
  const std::vector<Parameter>& parameters = t.problem.parameters;
  mine.elements = held_elements(t.problem, rank);
  DeviceCopies copies(t.options.device);
  std::vector<ParameterMemory> memory;
  for (size_t p = 0; p < parameters.size(); ++p) {
    const auto start = [p](int64_t element) { return made_up(p, element, 1); };
    const Dtype dtype = parameters[p].dtype;
    WeightForm form = dtype == Dtype::kF32 ? WeightForm::kF32 : WeightForm::kBf16;
    if (dtype != Dtype::kF32 && t.form) form = t.form(p);
    mine.extra.emplace_back();
    if (form == WeightForm::kBf16Master) mine.extra[p] = filled(Dtype::kF32, mine.elements[p], start);
    if (form == WeightForm::kBf16Mantissa) {
      for (const int64_t element : mine.elements[p]) {
        const auto low = static_cast<uint16_t>(std::bit_cast<uint32_t>(start(element)) & 0xffff);
        mine.extra[p].resize(mine.extra[p].size() + 2);
        std::memcpy(mine.extra[p].data() + mine.extra[p].size() - 2, &low, 2);
      }
    }
    mine.weights.push_back(filled(dtype, mine.elements[p], [&](int64_t element) {
      if (form != WeightForm::kBf16Mantissa) return start(element);
      return std::bit_cast<float>(std::bit_cast<uint32_t>(start(element)) & 0xffff0000);  // the high half
    }));
    memory.push_back({copies.upload(mine.weights[p]), copies.upload(mine.extra[p]), form, t.group ? t.group(p) : 0});
    if (parameters[p].state_keeper == StateKeeper::kHolders) give_state(t, p, rank, copies, memory.back());
  }
  Optimizer optimizer(t.problem, t.options, communicator, memory);
  if (t.measure) t.measure(rank, optimizer);
  if (t.before) t.before(optimizer);
  std::vector<std::vector<std::byte>> gradients(parameters.size());
  std::vector<void*> places(parameters.size());
  for (int step = 0; step < t.steps; ++step) {
    if (t.weight_moves || t.gradient_moves) optimizer.synchronize();
    std::vector<void*> pointers;
    for (size_t p = 0; p < parameters.size(); ++p) {
      std::vector<std::byte> values = filled(parameters[p].grad_dtype, mine.elements[p],
                                             [&](int64_t element) { return t.gradient(rank, p, element, step); });
      if (step == 0 || !t.gradient_moves || t.gradient_moves(p, step)) {
        gradients[p] = std::move(values);
        places[p] = copies.upload(gradients[p]);
      } else {
        copies.upload(values, places[p]);
      }
      pointers.push_back(!t.present || t.present(rank, p, step) ? places[p] : nullptr);
      if (!t.weight_moves || !t.weight_moves(p, step)) continue;
      std::vector<std::byte>& moved = mine.extra[p].empty() ? mine.weights[p] : mine.extra[p];
      void*& place = mine.extra[p].empty() ? memory[p].weight : memory[p].extra;
      copies.download(place, moved);
      place = copies.upload(moved);
      optimizer.move(static_cast<int32_t>(p), memory[p].weight, memory[p].extra);
    }
    if (t.before_step) t.before_step(optimizer, step);
    try {
      if (t.arrival) {
        StepOptions begin;
        if (t.step_options) begin.row_factors = t.step_options(step).row_factors;
        optimizer.begin_step(begin);
        for (const int32_t p : t.arrival(rank, step)) {
          optimizer.ready(p, p < static_cast<int32_t>(pointers.size()) ? pointers[p] : nullptr);
          std::this_thread::sleep_for(std::chrono::microseconds(20));
        }
      }
      mine.stats.push_back(optimizer.step(pointers, t.step_options ? t.step_options(step) : StepOptions{}));
    } catch (const std::exception& error) {
      if (t.failed) t.failed(optimizer, error.what());
      throw;
    }
  }
  optimizer.synchronize();
  for (size_t p = 0; p < parameters.size(); ++p) {
    copies.download(memory[p].weight, mine.weights[p]);
    copies.download(memory[p].extra, mine.extra[p]);
  }
  for (const StateInfo& info : optimizer.state()) mine.state.push_back(optimizer.export_state(info.name));
  if (t.after) t.after(optimizer);
  return mine;
}

std::vector<RankMemory> train(const Training& t) {
  const int32_t ranks = t.problem.ranks;
  std::vector<RankMemory> memory(ranks);
  std::vector<std::unique_ptr<Communicator>> communicators = make_local_communicators(ranks, {t.timeout});
  std::vector<std::thread> threads;
  for (int32_t r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      std::unique_ptr<Communicator> mine = std::move(communicators[r]);
      if (t.tamper) mine = t.tamper(std::move(mine));
      try {
        memory[r] = train_rank(t, *mine);
      } catch (const Error& error) {
        memory[r].error = error.what();
        memory[r].code = error.code();
        memory[r].about = error.parameter();
      } catch (const std::exception& error) {
        memory[r].error = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return memory;
}

std::vector<std::string> refusals_after(const Training& t, const std::vector<int64_t>& steps_done) {
  std::vector<std::string> said(steps_done.size());
  run_ranks(static_cast<int32_t>(steps_done.size()), [&](Communicator& communicator) {
    const auto rank = static_cast<size_t>(communicator.rank());
    int64_t counters[] = {steps_done[rank], 0};
    Training mine = t;
    mine.options.counters = counters;
    try {
      train_rank(mine, communicator);
    } catch (const InvalidArgument& error) {
      said[rank] = error.what();
    }
  });
  return said;
}

std::vector<std::string> errors(const std::vector<RankMemory>& ranks) {
  std::vector<std::string> out;
  for (const RankMemory& rank : ranks) out.push_back(rank.error);
  return out;
}

Training on_one_rank(const Training& many) {
  Training one = many;
  const Problem& problem = many.problem;
  one.tamper = nullptr;
  one.measure = nullptr;
  one.options.plan = {};
  one.problem.ranks = 1;
  one.problem.meshes = {{"one", {{"only", 1}}, {}}};
  one.problem.grad_sync = false;
  for (Parameter& p : one.problem.parameters) {
    p.layout = {0, {Placement::replicate()}, {}};
    p.state_keeper = StateKeeper::kEngine;
    p.grad_dtype = Dtype::kF32;
  }
  std::vector<std::map<int64_t, std::vector<int32_t>>> holders(problem.parameters.size());
  std::vector<std::vector<int32_t>> ranks(problem.parameters.size());
  for (int32_t r = 0; r < problem.ranks; ++r) {
    const auto held = held_elements(problem, r);
    for (size_t p = 0; p < holders.size(); ++p) {
      if (!held[p].empty()) ranks[p].push_back(r);
      for (const int64_t element : held[p]) holders[p][element].push_back(r);
    }
  }
  const auto present = many.present ? many.present : [](int32_t, size_t, int) { return true; };
  one.present = [ranks, present](int32_t, size_t p, int step) {
    for (const int32_t r : ranks[p]) {
      if (present(r, p, step)) return true;
    }
    return false;
  };
  one.gradient = [problem, holders, present, gradient = many.gradient](int32_t, size_t p, int64_t element, int step) {
    const std::vector<int32_t>& mine = holders[p].at(element);
    const Dtype dtype = problem.parameters[p].grad_dtype;
    const auto of = [&](int32_t r) {
      return present(r, p, step) ? rounded(dtype, gradient(r, p, element, step)) : 0.0F;
    };
    if (!problem.grad_sync || mine.size() == 1) return of(mine[0]);
    float sum = 0;
    for (const int32_t r : mine) sum += of(r);
    return sum / static_cast<float>(mine.size());
  };
  return one;
}

std::string difference(const Problem& problem, const std::vector<RankMemory>& many, const RankMemory& one) {
  for (size_t r = 0; r < many.size(); ++r) {
    if (!many[r].error.empty()) return fmt::format("rank {}: {}", r, many[r].error);
  }
  if (!one.error.empty()) return "one rank: " + one.error;
  for (size_t r = 0; r < many.size(); ++r) {
    for (size_t p = 0; p < problem.parameters.size(); ++p) {
      const auto width = static_cast<size_t>(byte_size(problem.parameters[p].dtype));
      for (size_t i = 0; i < many[r].elements[p].size(); ++i) {
        const auto element = static_cast<size_t>(many[r].elements[p][i]);
        if (std::memcmp(many[r].weights[p].data() + i * width, one.weights[p].data() + element * width, width) == 0) {
          continue;
        }
        return fmt::format("rank {}, parameter {} ('{}'), element {}", r, p, problem.parameters[p].name, element);
      }
    }
    for (size_t s = 0; s < one.state.size(); ++s) {
      if (many[r].state.at(s).data != one.state[s].data) {
        return fmt::format("rank {}, state {}", r, one.state[s].name);
      }
    }
  }
  return {};
}

std::string difference(const Problem& problem, const RankMemory& a, const RankMemory& b) {
  if (!a.error.empty()) return a.error;
  if (!b.error.empty()) return b.error;
  for (size_t p = 0; p < a.weights.size(); ++p) {
    if (a.weights[p] != b.weights[p]) return "weights of " + problem.parameters[p].name;
    if (a.extra[p] != b.extra[p]) return "extra of " + problem.parameters[p].name;
  }
  for (size_t s = 0; s < a.state.size(); ++s) {
    if (a.state[s].data != b.state[s].data) return a.state[s].name;
  }
  return {};
}

}  // namespace muster::test
