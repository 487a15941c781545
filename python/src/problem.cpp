// The structs of problem.h, layout.h, group.h and plan.h for Python, under their own names.
#include "muster/problem.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "muster/group.h"
#include "muster/plan.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace muster::python {

namespace {

void bind_enums(nb::module_& module) {
  nb::enum_<Dtype>(module, "Dtype").value("f32", Dtype::kF32).value("bf16", Dtype::kBf16).value("f16", Dtype::kF16);
  nb::enum_<WeightForm>(module, "WeightForm")
      .value("f32", WeightForm::kF32)
      .value("bf16", WeightForm::kBf16)
      .value("bf16_master", WeightForm::kBf16Master)
      .value("bf16_mantissa", WeightForm::kBf16Mantissa)
      .value("bf16_stochastic", WeightForm::kBf16Stochastic);
  nb::enum_<Algorithm>(module, "Algorithm")
      .value("muon", Algorithm::kMuon)
      .value("normuon", Algorithm::kNorMuon)
      .value("adamw", Algorithm::kAdamW)
      .value("lion", Algorithm::kLion)
      .value("rule", Algorithm::kRule);
  nb::enum_<NormAxis>(module, "NormAxis")
      .value("rows", NormAxis::kRows)
      .value("columns", NormAxis::kColumns)
      .value("longer", NormAxis::kLonger);
  nb::enum_<ScaleShape>(module, "ScaleShape")
      .value("block", ScaleShape::kBlock)
      .value("parameter", ScaleShape::kParameter);
  nb::enum_<StateKeeper>(module, "StateKeeper")
      .value("engine", StateKeeper::kEngine)
      .value("holders", StateKeeper::kHolders);
  nb::enum_<MomentumForm>(module, "MomentumForm").value("ema", MomentumForm::kEma).value("sum", MomentumForm::kSum);
  nb::enum_<Decay>(module, "Decay").value("plain", Decay::kPlain).value("cautious", Decay::kCautious);
  nb::enum_<StepScale>(module, "StepScale")
      .value("none", StepScale::kNone)
      .value("spectral", StepScale::kSpectral)
      .value("jordan", StepScale::kJordan)
      .value("rms", StepScale::kRms)
      .value("fan", StepScale::kFan);
}

void bind_layout(nb::module_& module) {
  nb::class_<Mesh>(module, "Mesh")
      .def(
          "__init__",
          [](Mesh* mesh, std::string name, const std::vector<std::string>& axes, const std::vector<int32_t>& sizes,
             std::vector<int32_t> ranks) {
            if (axes.size() != sizes.size()) throw nb::value_error("Mesh: expected one size per axis");
            new (mesh) Mesh{std::move(name), {}, std::move(ranks)};
            for (size_t i = 0; i < axes.size(); ++i) mesh->axes.push_back({axes[i], sizes[i]});
          },
          "name"_a, "axes"_a, "sizes"_a, "ranks"_a = std::vector<int32_t>{})
      .def_ro("name", &Mesh::name)
      .def_ro("ranks", &Mesh::ranks);
  nb::class_<Placement>(module, "Placement")
      .def_static("replicate", &Placement::replicate)
      .def_static(
          "shard",
          [](int dim, int32_t split_factor, std::vector<int64_t> sizes) {
            return Placement{Placement::Kind::kShard, dim, split_factor, std::move(sizes)};
          },
          "dim"_a, "split_factor"_a = 1, "sizes"_a = std::vector<int64_t>{})
      .def_static(
          "flat",
          [](std::vector<int64_t> sizes) {
            return Placement{Placement::Kind::kFlat, 0, 1, std::move(sizes)};
          },
          "sizes"_a = std::vector<int64_t>{});
  nb::class_<Layout>(module, "Layout")
      .def(
          "__init__",
          [](Layout* layout, int32_t mesh, std::vector<Placement> placements, std::vector<int32_t> order) {
            new (layout) Layout{mesh, std::move(placements), std::move(order)};
          },
          "mesh"_a, "placements"_a, "order"_a = std::vector<int32_t>{});
}

using Blocks = std::vector<std::pair<int64_t, std::optional<NormAxis>>>;

std::vector<Block> blocks(const Blocks& given) {
  std::vector<Block> out;
  for (const auto& [size, axis] : given) out.push_back({size, {}, axis});
  return out;
}

void bind_parameters(nb::module_& module) {
  nb::class_<MatrixSpec>(module, "MatrixSpec")
      .def(
          "__init__",
          [](MatrixSpec* spec, Shape view, bool flatten, const Blocks& rows, const Blocks& columns) {
            new (spec) MatrixSpec{std::move(view), flatten, blocks(rows), blocks(columns)};
          },
          "view"_a = Shape{}, "flatten"_a = false, "rows"_a = Blocks{}, "columns"_a = Blocks{},
          "Blocks are (size, NormAxis); None: the axis of the parameter.");
  nb::class_<Parameter>(module, "Parameter")
      .def(nb::init<>())
      .def_rw("name", &Parameter::name)
      .def_rw("shape", &Parameter::shape)
      .def_rw("dtype", &Parameter::dtype)
      .def_rw("grad_dtype", &Parameter::grad_dtype)
      .def_rw("layout", &Parameter::layout)
      .def_rw("algorithm", &Parameter::algorithm)
      .def_rw("norm_axis", &Parameter::norm_axis)
      .def_rw("matrices", &Parameter::matrices)
      .def_rw("state_keeper", &Parameter::state_keeper)
      .def_rw("output_dim", &Parameter::output_dim)
      .def_rw("scale_shape", &Parameter::scale_shape)
      .def_rw("multiplier", &Parameter::multiplier);
  nb::class_<Problem>(module, "Problem")
      .def(nb::init<>())
      .def_rw("model", &Problem::model)
      .def_rw("ranks", &Problem::ranks)
      .def_rw("meshes", &Problem::meshes)
      .def_rw("parameters", &Problem::parameters)
      .def_rw("wire", &Problem::wire)
      .def_rw("grad_sync", &Problem::grad_sync)
      .def("validate", [](const Problem& problem) { validate(problem); });
  module.def(
      "statistics",
      [](const Problem& problem, int32_t rank) {
        nb::list out;
        for (int32_t p = 0; p < static_cast<int32_t>(problem.parameters.size()); ++p) {
          const StatisticsLayout layout = statistics_layout(problem, p, rank);
          if (layout.shape.empty()) {
            out.append(nb::none());
          } else {
            out.append(nb::make_tuple(layout.shape, layout.local_shape, layout.dims));
          }
        }
        return out;
      },
      "problem"_a, "rank"_a,
      nb::sig("def statistics(problem: Problem, rank: int) -> list[tuple[list[int], list[int], list[int]] | None]"),
      "Per parameter, NorMuon's statistics that its holders keep: the whole shape, this rank's shape, and the "
      "dimension "
      "that each axis of the mesh cuts (-1: none).");
}

void bind_groups(nb::module_& module) {
  nb::class_<Coefficients>(module, "Coefficients")
      .def(
          "__init__",
          [](Coefficients* out, std::string name, const std::vector<std::vector<double>>& steps, double safety,
             int sketch) {
            const auto rescale = sketch == 0 ? Coefficients::Rescale::kNone : Coefficients::Rescale::kGram;
            new (out) Coefficients{std::move(name), {}, safety, rescale, sketch};
            for (const std::vector<double>& step : steps) {
              if (step.size() != 3) throw nb::value_error("coefficients: expected (a, b, c) per step");
              out->steps.push_back({step[0], step[1], step[2]});
            }
          },
          "name"_a, "steps"_a, "safety"_a = 1.0, "sketch"_a = 0,
          "sketch: columns of the sketch whose singular values are capped first (32, 64 or 96; 0: none); with it, X is "
          "divided by the norm of its Gram matrix.")
      .def_ro("name", &Coefficients::name)
      .def_ro("sketch", &Coefficients::sketch)
      .def("validate", [](const Coefficients& coefficients) { validate(coefficients); });
  module.def("coefficients", &coefficients, "name"_a);
  module.def("coefficient_names", &coefficient_names);
  nb::class_<Group>(module, "Group")
      .def(nb::init<>())
      .def_rw("lr", &Group::lr)
      .def_rw("weight_decay", &Group::weight_decay)
      .def_rw("decay", &Group::decay)
      .def_rw("every", &Group::every)
      .def_rw("momentum", &Group::momentum)
      .def_rw("momentum_form", &Group::momentum_form)
      .def_rw("nesterov", &Group::nesterov)
      .def_rw("coefficients", &Group::coefficients)
      .def_rw("scale", &Group::scale)
      .def_rw("beta1", &Group::beta1)
      .def_rw("beta2", &Group::beta2)
      .def_rw("eps", &Group::eps)
      .def("validate", [](const Group& group) { validate(group); });
}

void bind_plan_options(nb::module_& module) {
  nb::enum_<WaveOrder>(module, "WaveOrder")
      .value("small_first", WaveOrder::kSmallFirst)
      .value("small_last", WaveOrder::kSmallLast);
  nb::enum_<ElementwiseOrder>(module, "ElementwiseOrder")
      .value("interleaved", ElementwiseOrder::kInterleaved)
      .value("last", ElementwiseOrder::kLast)
      .value("first", ElementwiseOrder::kFirst);
  nb::class_<PlanOptions>(module, "PlanOptions")
      .def("__init__", [](PlanOptions* options) { new (options) PlanOptions{.cost = CostTable::cpu()}; })
      .def_prop_rw(
          "strategy", [](const PlanOptions& options) { return name(options.strategy); },
          [](PlanOptions& options, std::string_view text) { options.strategy = parse_strategy(text); })
      .def_rw("waves", &PlanOptions::waves)
      .def_rw("wave_order", &PlanOptions::wave_order)
      .def_rw("elementwise", &PlanOptions::elementwise)
      .def_rw("in_flight", &PlanOptions::in_flight)
      .def_rw("order", &PlanOptions::order)
      .def_rw("groups", &PlanOptions::groups)
      .def_rw("mixed_groups", &PlanOptions::mixed_groups)
      .def_rw("scratch_bytes", &PlanOptions::scratch_bytes)
      .def_prop_rw(
          "cost", [](const PlanOptions& options) { return options.cost.device; },
          [](PlanOptions& options, const std::string& text) { options.cost = CostTable::load(text); });
}

}  // namespace

void bind_problem(nb::module_& module) {
  bind_enums(module);
  bind_layout(module);
  bind_parameters(module);
  bind_groups(module);
  bind_plan_options(module);
}

}  // namespace muster::python
