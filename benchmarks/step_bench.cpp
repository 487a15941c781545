// How long does one NorMuon step take on the CPU, against the same step written the usual way on the same BLAS and
// threads (usual_way.h)? A quarter of GPT-2's depth, f32 weights, gradients and momentum, one rank. Beside the time:
// the FLOPs of the products, the share of the sgemm peak, and the time those FLOPs would take at it. All of them take
// turns, so that a busy machine disturbs all alike.
//
//   step_bench [--threads N] [--rounds N] [--width N] [--json]
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <ctime>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "kernels/cpu/newton_schulz.h"
#include "muster/optimizer.h"
#include "usual_way.h"

namespace muster::bench {
namespace {

struct Settings {
  int threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  int rounds = 7;
  int width = kWidth;  // of the model; a smaller one only shows that all ways agree
  bool json = false;
};

// Weights, gradients and state of the workload.
struct Model {
  std::vector<MatrixShape> shapes;
  std::vector<std::vector<float>> weights;
  std::vector<std::vector<float>> gradients;

  explicit Model(int64_t width) {
    for (const Batch& batch : workload(width)) {
      for (int64_t i = 0; i < batch.count; ++i) {
        const int64_t count = batch.shape.rows * batch.shape.columns;
        const auto seed = static_cast<uint32_t>(2 * shapes.size());
        shapes.push_back(batch.shape);
        weights.push_back(random_values(count, seed));
        for (float& w : weights.back()) w *= 0.02f;  // as models start
        gradients.push_back(random_values(count, seed + 1));
      }
    }
  }
};

Group hyperparameters() {
  Group group;
  group.lr = 0.02;
  group.weight_decay = 0.1;
  group.decay = Decay::kCautious;
  return group;
}

// A way to take the step, and what its turns took.
struct Way {
  explicit Way(int64_t width) : model(width) {}

  std::string name;
  double flops = 0;
  std::function<void()> step;
  Model model;
  std::vector<double> seconds;
  std::vector<double> cpu_seconds;  // of the process, over all threads
};

void take_turn(Way& way) {
  const double cpu = cpu_now();
  const auto start = std::chrono::steady_clock::now();
  way.step();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  way.seconds.push_back(seconds.count());
  way.cpu_seconds.push_back(cpu_now() - cpu);
}

// Keeps what Optimizer holds references to.
struct Muster {
  std::vector<std::unique_ptr<Communicator>> communicators = make_local_communicators(1);
  std::unique_ptr<Optimizer> optimizer;
  std::vector<void*> gradients;
};

std::unique_ptr<Way> muster_way(const Settings& settings, Dtype wire, std::shared_ptr<Muster>& keep) {
  auto way = std::make_unique<Way>(settings.width);
  way->name = wire == Dtype::kF32 ? "Muster" : "Muster, bf16 wire";
  Problem problem;
  problem.meshes = {{"ranks", {{"ranks", 1}}, {}}};
  problem.wire = wire;
  OptimizerOptions options{.groups = {hyperparameters()}};
  options.threads = settings.threads;
  const size_t steps = options.groups[0].coefficients.steps.size();
  std::vector<ParameterMemory> memory;
  keep = std::make_shared<Muster>();
  for (size_t m = 0; m < way->model.shapes.size(); ++m) {
    const MatrixShape shape = way->model.shapes[m];
    Parameter parameter;
    parameter.name = fmt::format("matrix.{}", m);
    parameter.shape = {shape.rows, shape.columns};
    parameter.layout.placements = {Placement::replicate()};
    problem.parameters.push_back(parameter);
    memory.push_back({.weight = way->model.weights[m].data()});
    keep->gradients.push_back(way->model.gradients[m].data());
    way->flops += kernels::cpu::newton_schulz_flops(kernels::cpu::form_of(shape), shape, static_cast<int64_t>(steps));
  }
  keep->optimizer = std::make_unique<Optimizer>(problem, options, *keep->communicators[0], memory);
  way->step = [keep] { keep->optimizer->step(keep->gradients); };
  return way;
}

std::unique_ptr<Way> usual_way(const Settings& settings, bool fused) {
  auto way = std::make_unique<Way>(settings.width);
  way->name = fused ? "usual way, fused" : "usual way";
  const Group group = hyperparameters();
  struct State {
    std::vector<std::vector<float>> momentum;
    std::vector<std::vector<float>> variance;
  };
  auto state = std::make_shared<State>();
  for (const MatrixShape shape : way->model.shapes) {
    state->momentum.emplace_back(static_cast<size_t>(shape.rows * shape.columns));
    state->variance.emplace_back(static_cast<size_t>(std::max(shape.rows, shape.columns)));
    way->flops += UsualWay::flops(shape, group.coefficients.steps.size());
  }
  auto usual =
      std::make_shared<UsualWay>(settings.threads, UsualWay::Options{group.coefficients, group.lr, group.weight_decay,
                                                                     group.momentum, group.beta2, group.eps, fused});
  way->step = [usual, state, model = &way->model] {
    for (size_t m = 0; m < model->shapes.size(); ++m) {
      usual->step(model->shapes[m], model->gradients[m].data(), state->momentum[m].data(), state->variance[m].data(),
                  model->weights[m].data());
    }
  };
  return way;
}

// How far the weights are from the expected ones, relative to how far those have come.
double difference(const Model& model, const Model& expected, int64_t width) {
  const Model start(width);
  double worst = 0;
  for (size_t m = 0; m < start.shapes.size(); ++m) {
    double off = 0;
    double moved = 0;
    for (size_t i = 0; i < start.weights[m].size(); ++i) {
      const double w = expected.weights[m][i];
      off += (model.weights[m][i] - w) * (model.weights[m][i] - w);
      moved += (w - start.weights[m][i]) * (w - start.weights[m][i]);
    }
    worst = std::max(worst, std::sqrt(off / moved));
  }
  return worst;
}

// f32 sums of up to 3072 products leave 1e-4 of a step; bf16 rounds an update by up to 2^-9, twice.
double tolerance(const Way& way) { return way.name == "Muster, bf16 wire" ? 1e-2 : 1e-3; }

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}
double least(const std::vector<double>& values) { return *std::min_element(values.begin(), values.end()); }

// The best of a round, over several sizes.
class Peak {
 public:
  Peak(int threads, int64_t width) {
    for (const int64_t n : {width, 2 * width, 8 * width / 3, 4 * width}) {
      sizes_.push_back(std::make_unique<SgemmPeak>(threads, n));
    }
  }
  Rate measure() {
    Rate best;
    for (const auto& size : sizes_) {
      for (int i = 0; i < 2; ++i) best.raise_to(size->measure());
    }
    return best;
  }

 private:
  std::vector<std::unique_ptr<SgemmPeak>> sizes_;
};

// Times and rates by one clock.
struct View {
  std::string clock;
  std::vector<double> Way::*seconds;
  double Rate::*peak;
  double threads;  // CPU seconds a second
};

void print_view(const View& view, const std::vector<Way*>& ways, const std::vector<Rate>& peaks) {
  const auto median_over_rounds = [&](const auto& of) {
    std::vector<double> values;
    for (size_t i = 0; i < peaks.size(); ++i) values.push_back(of(i));
    return median(values);
  };
  double best = 0;
  for (const Rate& rate : peaks) best = std::max(best, rate.*view.peak);
  fmt::print("\n{}; sgemm peak {:.1f} GFLOP/s, median of the rounds {:.1f}\n", view.clock, best / 1e9,
             median_over_rounds([&](size_t i) { return peaks[i].*view.peak; }) / 1e9);
  fmt::print("{:<18} {:>16} {:>6} {:>8} {:>15} {:>12} {:>8}\n", "(least / median)", "time, s", "GFLOP", "GFLOP/s",
             "share of peak", "speed-up", "bound, s");
  for (const Way* way : ways) {
    const std::vector<double>& seconds = way->*view.seconds;
    const std::vector<double>& usual = ways.back()->*view.seconds;
    const double rate = way->flops * view.threads / least(seconds);
    const double share =
        median_over_rounds([&](size_t i) { return way->flops * view.threads / seconds[i] / (peaks[i].*view.peak); });
    fmt::print("{:<18} {:>7.3f} /{:>7.3f} {:>6.1f} {:>8.1f} {:>5.1f} % /{:>5.1f} % {:>5.2f} /{:>5.2f} {:>8.3f}\n",
               way->name, least(seconds), median(seconds), way->flops / 1e9, rate / 1e9, 100 * rate / best, 100 * share,
               least(usual) / least(seconds), median_over_rounds([&](size_t i) { return usual[i] / seconds[i]; }),
               way->flops * view.threads / best);
  }
}

void print_table(const Settings& settings, const std::vector<Way*>& ways, const std::vector<Rate>& peaks,
                 const Optimizer& optimizer) {
  fmt::print("{} threads, {} rounds\n", settings.threads, settings.rounds);
  print_view({"wall clock", &Way::seconds, &Rate::wall, 1}, ways, peaks);
  print_view({"CPU time of all threads", &Way::cpu_seconds, &Rate::cpu, static_cast<double>(settings.threads)}, ways,
             peaks);
  const StepStats& stats = optimizer.last_step();
  fmt::print("\nMuster's last step, ms: {:.1f};", static_cast<double>(stats.total_ns) / 1e6);
  for (int s = 0; s < kStages; ++s) {
    const auto stage = static_cast<Stage>(s);
    const double ms = static_cast<double>(stats.at(stage)) / 1e6;
    if (ms >= 0.1) fmt::print(" {} {:.1f}", name(stage), ms);
  }
  fmt::print("\n");
}

void print_json(const Settings& settings, const std::vector<Way*>& ways, const std::vector<Rate>& peaks) {
  nlohmann::json out{{"threads", settings.threads}, {"peaks", nlohmann::json::array()}};
  for (const Rate& rate : peaks) out["peaks"].push_back({{"wall", rate.wall}, {"cpu", rate.cpu}});
  for (const Way* way : ways) {
    out["ways"].push_back(
        {{"name", way->name}, {"flops", way->flops}, {"seconds", way->seconds}, {"cpu_seconds", way->cpu_seconds}});
  }
  fmt::print("{}\n", out.dump());
}

int run(const Settings& settings) {
  std::shared_ptr<Muster> f32;
  std::shared_ptr<Muster> bf16;
  const auto muster_f32 = muster_way(settings, Dtype::kF32, f32);
  const auto muster_bf16 = muster_way(settings, Dtype::kBf16, bf16);
  const auto fused = usual_way(settings, true);
  const auto usual = usual_way(settings, false);
  const std::vector<Way*> ways{muster_f32.get(), muster_bf16.get(), fused.get(), usual.get()};
  Peak peak(settings.threads, settings.width);
  std::vector<Rate> peaks;

  // The warm-up is also the comparison: the first steps of all start from the same weights.
  for (Way* way : ways) way->step();
  for (const Way* way : ways) {
    const double off = difference(way->model, usual->model, settings.width);
    if (!(off <= tolerance(*way))) {
      throw std::runtime_error(fmt::format("{}: {} from the usual way, expected {}", way->name, off, tolerance(*way)));
    }
  }
  for (int round = 0; round < settings.rounds; ++round) {
    peaks.push_back(peak.measure());
    for (Way* way : ways) take_turn(*way);
  }
  settings.json ? print_json(settings, ways, peaks) : print_table(settings, ways, peaks, *f32->optimizer);
  return 0;
}

Settings parse(int argc, char** argv) {
  Settings settings;
  for (int i = 1; i < argc; ++i) {
    const std::string_view flag = argv[i];
    if (flag == "--json") {
      settings.json = true;
    } else if ((flag == "--threads" || flag == "--rounds" || flag == "--width") && i + 1 < argc) {
      const int value = std::stoi(argv[++i]);
      if (value < 1) throw std::runtime_error(fmt::format("{}: {}: expected at least 1", flag, value));
      (flag == "--threads" ? settings.threads : flag == "--rounds" ? settings.rounds : settings.width) = value;
    } else {
      throw std::runtime_error(fmt::format("{}: expected --threads N, --rounds N, --width N or --json", flag));
    }
  }
  // The usual way sums 16 elements at a time, and a size of the peak is 8/3 of the width.
  if (settings.width % 48 != 0) {
    throw std::runtime_error(fmt::format("--width: {}: expected a multiple of 48", settings.width));
  }
  return settings;
}

}  // namespace
}  // namespace muster::bench

int main(int argc, char** argv) {
  try {
    return muster::bench::run(muster::bench::parse(argc, argv));
  } catch (const std::exception& error) {
    fmt::print(stderr, "step_bench: {}\n", error.what());
    return 1;
  }
}
