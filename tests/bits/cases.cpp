#include "cases.h"

#include <utility>

using namespace muster;

namespace {

struct NamedLayout {
  const char* name;
  std::vector<MeshAxis> axes;
  std::vector<Placement> two;    // of tensors with two dims and more
  std::vector<Placement> three;  // of stacks of matrices
  std::vector<Placement> one;    // of vectors
  std::vector<int32_t> order;
};

const Placement kNone = Placement::replicate();
Placement dim(int d) { return Placement::shard(d); }
Placement strided(int d, int32_t factor) { return {Placement::Kind::kShard, d, factor, {}}; }
Placement pieces(int d, std::vector<int64_t> sizes) { return {Placement::Kind::kShard, d, 1, std::move(sizes)}; }

std::vector<NamedLayout> layouts() {
  return {
      {"one", {{"fsdp", 1}}, {dim(0)}, {dim(0)}, {dim(0)}, {}},
      {"fsdp4", {{"fsdp", 4}}, {dim(0)}, {dim(0)}, {dim(0)}, {}},
      {"fsdp5-uneven", {{"fsdp", 5}}, {dim(0)}, {dim(1)}, {dim(0)}, {}},
      {"tp2", {{"tp", 2}}, {dim(1)}, {dim(2)}, {kNone}, {}},
      {"fsdp2-tp2", {{"fsdp", 2}, {"tp", 2}}, {dim(0), dim(1)}, {dim(1), dim(2)}, {dim(0), kNone}, {}},
      {"fsdp-over-tp", {{"fsdp", 2}, {"tp", 2}}, {strided(0, 2), dim(0)}, {dim(0), dim(0)}, {dim(0), kNone}, {1, 0}},
      {"ep3", {{"ep", 3}}, {kNone}, {dim(0)}, {kNone}, {}},
      {"ddp3", {{"dp", 3}}, {kNone}, {kNone}, {kNone}, {}},
      {"hsdp2x2", {{"dp", 2}, {"fsdp", 2}}, {kNone, dim(0)}, {kNone, dim(0)}, {kNone, dim(0)}, {}},
      {"flat3", {{"zero", 3}}, {Placement::flat()}, {Placement::flat()}, {Placement::flat()}, {}},
      {"sizes2", {{"fsdp", 2}}, {kNone}, {pieces(0, {4, 2})}, {kNone}, {}},
  };
}

Problem problem_of(const NamedLayout& layout) {
  Problem problem;
  problem.model = layout.name;
  Mesh mesh{"world", layout.axes, {}};
  problem.ranks = 1;
  for (const MeshAxis& axis : layout.axes) problem.ranks *= axis.size;
  problem.meshes = {mesh};
  const auto add = [&](const char* name, Shape shape, Algorithm algorithm) -> Parameter& {
    Parameter p;
    p.name = name;
    p.shape = std::move(shape);
    p.algorithm = algorithm;
    p.layout = {0, p.shape.size() == 1 ? layout.one : p.shape.size() == 3 ? layout.three : layout.two, layout.order};
    return problem.parameters.emplace_back(std::move(p));
  };
  add("wide", {24, 40}, Algorithm::kMuon);
  add("tall", {56, 16}, Algorithm::kNorMuon);
  add("square", {32, 32}, Algorithm::kNorMuon).output_dim = 1;
  add("experts", {6, 10, 14}, Algorithm::kNorMuon);
  add("heads", {18, 12}, Algorithm::kNorMuon).matrices.rows.assign(3, Block{6, {}, {}});
  add("more", {24, 40}, Algorithm::kMuon).multiplier = 2;
  add("table", {13, 8}, Algorithm::kAdamW);
  add("gain", {33}, Algorithm::kLion);
  return problem;
}

// All parameters of a layout follow one group.
Case make(const NamedLayout& layout, const std::string& what) {
  Case c;
  c.name = std::string(layout.name) + "." + what;
  c.problem = problem_of(layout);
  c.options.groups[0].weight_decay = 0.1;
  return c;
}

template <typename Change>
void add(std::vector<Case>& cases, const NamedLayout& layout, const std::string& what, Change change) {
  Case c = make(layout, what);
  change(c);
  cases.push_back(std::move(c));
}

void set_form(Case& c, WeightForm form) {
  c.form = form;
  for (Parameter& p : c.problem.parameters) {
    if (is_matrix_algorithm(p.algorithm)) p.dtype = Dtype::kBf16;
  }
}

const NamedLayout& named(const std::vector<NamedLayout>& all, const std::string& name) {
  for (const NamedLayout& layout : all) {
    if (layout.name == name) return layout;
  }
  std::abort();
}

void add_strategies(std::vector<Case>& cases, const std::vector<NamedLayout>& all) {
  for (const char* layout : {"fsdp4", "fsdp2-tp2", "ddp3"}) {
    for (const Strategy strategy : all_strategies()) {
      if (strategy == Strategy::kGlobal || strategy == Strategy::kGrouped) continue;
      add(cases, named(all, layout), std::string(name(strategy)), [&](Case& c) {
        c.options.plan.strategy = strategy;
        c.options.plan.scratch_bytes = 0;
      });
    }
  }
}

void add_variations(std::vector<Case>& cases, const NamedLayout& layout) {
  for (const int32_t waves : {1, 2, 4}) {
    add(cases, layout, "waves" + std::to_string(waves), [&](Case& c) { c.options.plan.waves = waves; });
  }
  const std::pair<const char*, WeightForm> forms[] = {{"bf16", WeightForm::kBf16},
                                                      {"master", WeightForm::kBf16Master},
                                                      {"mantissa", WeightForm::kBf16Mantissa},
                                                      {"stochastic", WeightForm::kBf16Stochastic}};
  for (const auto& [label, form] : forms) add(cases, layout, label, [f = form](Case& c) { set_form(c, f); });
  add(cases, layout, "every2", [](Case& c) { c.options.groups[0].every = 2; });
  add(cases, layout, "clipped", [](Case& c) { c.step.max_grad_norm = 0.5; });
  add(cases, layout, "skip-non-finite", [](Case& c) { c.step.non_finite = NonFinite::kSkipStep; });
  add(cases, layout, "missing", [](Case& c) { c.missing = true; });
  add(cases, layout, "f32-wire", [](Case& c) { c.problem.wire = Dtype::kF32; });
  add(cases, layout, "bf16-momentum", [](Case& c) { c.options.momentum = Dtype::kBf16; });
  add(cases, layout, "cautious-sum", [](Case& c) {
    c.options.groups[0].decay = Decay::kCautious;
    c.options.groups[0].momentum_form = MomentumForm::kSum;
    c.options.groups[0].nesterov = false;
  });
  add(cases, layout, "tight", [](Case& c) { c.options.groups[0].coefficients = coefficients("polar_express_tight"); });
  add(cases, layout, "aol4", [](Case& c) { c.options.groups[0].coefficients = coefficients("aol4"); });
  for (const char* set : {"capped3", "capped4"}) {
    add(cases, layout, set, [set](Case& c) { c.options.groups[0].coefficients = coefficients(set); });
  }
  add(cases, layout, "holders", [](Case& c) {
    c.holders = true;
    for (Parameter& p : c.problem.parameters) p.state_keeper = StateKeeper::kHolders;
  });
  add(cases, layout, "threads2", [](Case& c) { c.options.threads = 2; });
}

}  // namespace

std::vector<Case> all_cases() {
  const std::vector<NamedLayout> all = layouts();
  std::vector<Case> cases;
  for (const NamedLayout& layout : all) add(cases, layout, "plain", [](Case&) {});
  add_strategies(cases, all);
  add_variations(cases, named(all, "fsdp4"));
  add_variations(cases, named(all, "hsdp2x2"));
  for (const char* layout : {"ddp3", "hsdp2x2"}) {
    add(cases, named(all, layout), "grad-sync", [](Case& c) { c.problem.grad_sync = true; });
  }
  return cases;
}

std::vector<Case> gpu_cases() {
  const std::vector<NamedLayout> all = layouts();
  std::vector<Case> cases;
  for (const char* layout : {"one", "tp2", "fsdp4", "fsdp2-tp2", "hsdp2x2", "ep3"}) {
    add(cases, named(all, layout), "plain", [](Case&) {});
  }
  for (const char* layout : {"one", "fsdp4"}) {
    add(cases, named(all, layout), "clipped", [](Case& c) { c.step.max_grad_norm = 0.5; });
    add(cases, named(all, layout), "mantissa", [](Case& c) { set_form(c, WeightForm::kBf16Mantissa); });
    add(cases, named(all, layout), "missing", [](Case& c) { c.missing = true; });
  }
  for (Case& c : cases) {
    c.options.device.kind = Device::Kind::kCuda;
    c.options.plan.cost = CostTable::h200();
  }
  return cases;
}
