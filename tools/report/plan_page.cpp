#include "report/plan_page.h"

#include <cctype>
#include <map>
#include <tuple>

#include <fmt/format.h>

#include "plan/catalog.h"
#include "plan/replicas.h"
#include "plan_text/text.h"
#include "plan_text/words.h"
#include "report/findings.h"

namespace muster::report {
namespace {

constexpr int32_t kWavesMax = 64;
constexpr int32_t kWavesLast = 8;  // of them
constexpr size_t kShapesWidth = 80;

bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

Figure predicted(const Figure& figure) { return figure.from(Source::kPredicted); }

// "layers.12.mlp.0" is of the class "layers.{}.mlp.{}" and the layer "layers.12".
struct ClassName {
  std::string pattern;
  std::string layer;
};

ClassName class_name(const std::string& parameter) {
  ClassName out;
  for (size_t i = 0; i < parameter.size();) {
    if (!is_digit(parameter[i])) {
      out.pattern += parameter[i++];
      continue;
    }
    while (i < parameter.size() && is_digit(parameter[i])) ++i;
    out.pattern += "{}";
    if (out.layer.empty()) out.layer = parameter.substr(0, i);
  }
  if (out.layer.empty()) out.layer = parameter;
  return out;
}

class MapBuilder {
 public:
  MapBuilder(const plan_text::PlanReport& report, std::string strategy) : report_(report), catalog_(report.problem) {
    map_.strategy = std::move(strategy);
    map_.ranks = report.problem.ranks;
    map_.wave_count = static_cast<int32_t>(report.plan.waves.size());
  }

  PlanMap build() {
    sort_matrices();
    for (const auto& members : members_) {
      for (const int32_t matrix : members) add(matrix, report_.plan.owner[matrix], report_.plan.wave[matrix]);
    }
    add_zeros();
    add_waves();
    return std::move(map_);
  }

 private:
  // By class, then by layer, both in the order of their first matrix; within a layer as the plan has them.
  void sort_matrices() {
    std::map<std::tuple<std::string, int64_t, int64_t>, size_t> class_at;
    std::map<std::pair<size_t, std::string>, size_t> layer_at;
    std::vector<std::vector<std::vector<int32_t>>> members;  // of a class, of a layer
    for (int32_t j = 0; j < catalog_.matrix_count(); ++j) {
      const ClassName name = class_name(report_.problem.parameters[catalog_.parameter_of(j)].name);
      const int64_t rows = catalog_.rows(j);
      const int64_t columns = catalog_.columns(j);
      const auto [c, new_class] = class_at.try_emplace({name.pattern, rows, columns}, map_.classes.size());
      if (new_class) {
        map_.classes.push_back({name.pattern, fmt::format("{}×{}", rows, columns), {}});
        members.emplace_back();
      }
      PlanMap::Class& home = map_.classes[c->second];
      const auto [l, new_layer] = layer_at.try_emplace({c->second, name.layer}, home.layers.size());
      if (new_layer) {
        home.layers.push_back({name.layer, 0});
        members[c->second].emplace_back();
      }
      ++home.layers[l->second].matrices;
      members[c->second][l->second].push_back(j);
    }
    for (auto& layers : members) {
      for (auto& layer : layers) members_.push_back(std::move(layer));
    }
  }

  void add(int32_t matrix, int32_t owner, int32_t wave) {
    map_.owner.push_back(owner);
    map_.wave.push_back(wave);
    map_.repeated.push_back(plan::in_each_replica(report_.plan, matrix) ? replicas_of(matrix) : -1);
  }

  int32_t replicas_of(int32_t matrix) {
    const int32_t set = catalog_.class_at(matrix).holder_set;
    const auto [found, added] = replicas_at_.try_emplace(set, static_cast<int32_t>(map_.replicas.size()));
    if (added) {
      const plan::HolderSet& holders = catalog_.holders_of(matrix);
      const int32_t size = holders.of_replica();
      auto& ranks = map_.replicas.emplace_back();
      for (int32_t r = 0; r < holders.replicas; ++r) {
        const auto first = holders.by_replica.begin() + r * size;
        ranks.emplace_back(first, first + size);
      }
    }
    return found->second;
  }

  // Zero matrices are a class of their own, with a layer a shape.
  void add_zeros() {
    std::map<std::pair<int64_t, int64_t>, std::vector<std::pair<int32_t, int32_t>>> by_shape;  // owner, wave
    for (size_t k = 0; k < report_.plan.waves.size(); ++k) {
      for (const ZeroMatrix& zero : report_.plan.waves[k].zeros) {
        by_shape[{catalog_.rows(zero.like), catalog_.columns(zero.like)}].emplace_back(zero.owner, k);
      }
    }
    if (by_shape.empty()) return;
    PlanMap::Class zeros{"zero matrices", "padding", {}};
    for (const auto& [shape, list] : by_shape) {
      zeros.layers.push_back({fmt::format("{}×{}", shape.first, shape.second), static_cast<int32_t>(list.size())});
      for (const auto& [owner, wave] : list) {
        map_.owner.push_back(owner);
        map_.wave.push_back(wave);
        map_.repeated.push_back(-1);
      }
    }
    map_.classes.push_back(std::move(zeros));
  }

  void add_waves() {
    const auto shapes = plan_text::count_shapes(catalog_, report_.plan.wave, map_.wave_count);
    for (int32_t k = 0; k < map_.wave_count; ++k) {
      if (map_.wave_count > kWavesMax && k == kWavesMax - kWavesLast) k = map_.wave_count - kWavesLast;
      const PlanSummary::WaveTotal& wave = report_.summary.waves[k];
      map_.waves.push_back(
          {k,
           plan_text::shapes_text(shapes[k], kShapesWidth),
           std::string(plan_text::word(report_.plan.waves[k].transport)),
           {Figure::count("matrices", "matrices", wave.matrices), Figure::count("zero_matrices", "zero", wave.zeros),
            Figure::count("owners", "owners", wave.owners), Figure::bytes("bytes_in", "bytes in", wave.bytes_in),
            Figure::bytes("bytes_out", "bytes out", wave.bytes_out),
            predicted(Figure::time("in_ms", "time in", wave.in_ns)),
            predicted(Figure::time("compute_ms", "compute", wave.compute_ns)),
            predicted(Figure::time("out_ms", "time out", wave.out_ns))}});
    }
  }

  const plan_text::PlanReport& report_;
  const plan::Catalog catalog_;
  std::vector<std::vector<int32_t>> members_;  // matrices of each layer of each class
  std::map<int32_t, int32_t> replicas_at_;     // by holder set
  PlanMap map_;
};

std::vector<Figure> plan_facts(const plan_text::PlanReport& report) {
  const PlanSummary& summary = report.summary;
  return {
      predicted(Figure::time("predicted_ms", "step", summary.predicted_ns)),
      predicted(Figure::ratio("over_bound", "slowest rank / bound", summary.over_bound())).with_note("at least 1"),
      predicted(Figure::ratio("imbalance", "slowest / mean rank", summary.imbalance())),
      Figure::count("collectives", "collectives per step", summary.collectives)
          .with_note(plan_text::counted_text(summary.rounds, "round")),
      Figure::count("waves", "waves", std::ssize(summary.waves))
          .with_note(fmt::format("{} in flight", report.plan.in_flight)),
      Figure::bytes("bytes_sent_total", "sent in all", summary.bytes_sent_total)
          .with_note(fmt::format("{} by the busiest", plan_text::bytes_text(summary.bytes_sent_max))),
      Figure::bytes("padding_bytes", "padding", summary.padding_bytes)
          .with_note(plan_text::counted_text(plan_text::zero_matrix_count(summary), "zero matrix", "zero matrices")),
      Figure::bytes("scratch_bytes_max", "scratch, at most", summary.scratch_bytes_max)
          .with_note(plan_text::scratch_cap_text(report.plan)),
      Figure::time("plan_ms", "time to plan", report.plan_ns).from(Source::kMeasured),
  };
}

}  // namespace

PlanMap plan_map(const plan_text::PlanReport& report, std::string strategy) {
  return MapBuilder(report, std::move(strategy)).build();
}

Load plan_load(const PlanSummary& summary, std::string strategy) {
  Load load{std::move(strategy), summary.predicted_ns, {}, {}};
  for (const PlanSummary::Rank& rank : summary.ranks) {
    load.compute_ns.push_back(rank.compute_ns);
    load.exchange_ns.push_back(rank.exchange_ns);
  }
  return load;
}

StrategyRow plan_row(const PlanSummary& summary, std::string strategy) {
  return {std::move(strategy),
          summary.bytes_sent_total,
          summary.padding_bytes,
          {predicted(Figure::time("predicted_ms", "step", summary.predicted_ns)),
           predicted(Figure::ratio("over_bound", "slowest rank / bound", summary.over_bound())),
           Figure::count("collectives", "collectives", summary.collectives),
           Figure::bytes("bytes_sent_total", "sent in all", summary.bytes_sent_total),
           Figure::bytes("bytes_sent_max", "by the busiest", summary.bytes_sent_max),
           Figure::bytes("padding_bytes", "padding", summary.padding_bytes),
           Figure::bytes("scratch_bytes_max", "scratch, at most", summary.scratch_bytes_max)}};
}

std::string problem_words(const Problem& problem, int64_t matrices) {
  std::string text;
  for (const Mesh& mesh : problem.meshes) text += fmt::format("mesh {} · ", plan_text::mesh_words(mesh));
  return text + fmt::format("{} · {} elements · {}",
                            plan_text::counted_text(std::ssize(problem.parameters), "parameter"),
                            plan_text::magnitude_text(plan_text::total_elements(problem)),
                            plan_text::counted_text(matrices, "matrix", "matrices"));
}

std::string cost_note(const CostTable& cost) {
  return fmt::format(
      "Predicted times come from the cost table {}, for ranks that each have a device to themselves; `muster "
      "tune` measures a table. Bytes, messages and collectives are counted.",
      plan_text::printable(cost.device));
}

Page plan_page(const plan_text::PlanReport& report, std::span<const Alternative> others) {
  const std::string strategy(name(report.plan.strategy));
  Page page;
  page.title = fmt::format("{} on {}", plan_text::printable(report.problem.model),
                           plan_text::counted_text(report.problem.ranks, "rank"));
  page.subtitle = fmt::format("plan {} · {} · cost table {} · hash {}", strategy,
                              problem_words(report.problem, std::ssize(report.plan.owner)),
                              plan_text::printable(report.cost.device), plan_text::hash_text(report.plan.hash));
  page.strategies_note =
      fmt::format("All are planned with the cost table {}.", plan_text::printable(report.cost.device));
  page.facts = plan_facts(report);
  for (const Alternative& other : others) {
    page.strategies.push_back(plan_row(other.summary, other.strategy));
    page.loads.push_back(plan_load(other.summary, other.strategy));
  }
  page.strategies.push_back(plan_row(report.summary, strategy));
  page.loads.push_back(plan_load(report.summary, strategy));
  page.maps.push_back(plan_map(report, strategy));
  std::vector<StepTime> steps;
  for (const Load& load : page.loads) steps.push_back({load.strategy, load.step_ns});
  page.findings = {fastest_words(steps, "optimizer step", "predicted"), padding_words(padding_of(page.strategies))};
  page.notes.push_back(cost_note(report.cost));
  return page;
}

}  // namespace muster::report
