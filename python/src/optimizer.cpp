// The optimizer for Python. Memory is given as addresses: the caller keeps it alive, in place and contiguous.
#include "muster/optimizer.h"

#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "muster/error.h"
#include "owner.h"
#include "plan_text/plan_json.h"
#include "plan_text/plan_table.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace muster::python {

namespace {

using Addresses = std::vector<uintptr_t>;
// (name, type, shape, row-major bytes)
using StateTuple = std::tuple<std::string, StateType, Shape, nb::bytes>;

std::vector<void*> pointers(const Addresses& addresses) {
  std::vector<void*> out;
  out.reserve(addresses.size());
  for (const uintptr_t address : addresses) out.push_back(reinterpret_cast<void*>(address));
  return out;
}

// An optimizer with its plan options, which reports of the plan need.
class Engine {
 public:
  Engine(Problem problem, OptimizerOptions options, Communicator& communicator, std::vector<ParameterMemory> memory)
      : plan_options_(options.plan),
        optimizer_(std::in_place, std::move(problem), std::move(options), communicator, std::move(memory)) {}
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  ~Engine() {
    if (!owner_.is_this_process()) {
      new Optimizer(std::move(*optimizer_));  // leaked: its destructor would join threads that the child does not have
      return;
    }
    const nb::gil_scoped_release no_gil;  // the destructor waits for the steps under way
    optimizer_.reset();
  }

  Optimizer& optimizer() {
    owner_.require("optimizer");
    return *optimizer_;
  }

  template <typename Make>
  std::string report(Make make) {
    const Problem& problem = optimizer_->problem();
    const Plan& plan = optimizer_->plan();
    const PlanSummary summary = summarize(problem, plan, plan_options_.cost);
    return make(plan_text::PlanReport{problem, plan, summary, plan_options_.cost});
  }

 private:
  const Owner owner_;
  PlanOptions plan_options_;
  std::optional<Optimizer> optimizer_;
};

nb::dict stats(const StepStats& stats) {
  nb::dict out;
  out["step"] = stats.step;
  out["skipped"] = stats.skipped;
  out["grad_norm"] = stats.grad_norm;
  out["total_ns"] = stats.total_ns;
  nb::dict stages;
  for (int s = 0; s < kStages; ++s) stages[nb::cast(name(static_cast<Stage>(s)))] = stats.stage_ns[s];
  out["stage_ns"] = stages;
  out["exchanges"] = stats.exchanges;
  out["messages_sent"] = stats.messages_sent;
  out["bytes_sent"] = stats.bytes_sent;
  out["bytes_received"] = stats.bytes_received;
  out["kernels"] = stats.kernels;
  out["replayed"] = stats.replayed;
  out["early_waves"] = stats.early_waves;
  return out;
}

nb::list trace(const std::vector<TraceEvent>& events) {
  nb::list out;
  for (const TraceEvent& e : events) {
    out.append(nb::make_tuple(e.name, e.exchange, e.wave, e.begin_ns, e.end_ns, e.bytes));
  }
  return out;
}

nb::tuple export_state(Engine& engine, const std::string& name) {
  StateTensor tensor;
  {
    const nb::gil_scoped_release no_gil;
    tensor = engine.optimizer().export_state(name);
  }
  return nb::make_tuple(tensor.type, tensor.shape, nb::bytes(tensor.data.data(), tensor.data.size()));
}

void import_state(Engine& engine, const nb::list& given) {
  std::vector<StateTensor> tensors;
  for (const nb::handle item : given) {
    const auto [name, type, shape, data] = nb::cast<StateTuple>(item);
    const auto* bytes = static_cast<const std::byte*>(data.data());
    StateTensor tensor;
    tensor.name = name;
    tensor.type = type;
    tensor.shape = shape;
    tensor.data.assign(bytes, bytes + data.size());
    tensors.push_back(std::move(tensor));
  }
  const nb::gil_scoped_release no_gil;
  engine.optimizer().import_state(tensors);
}

// Runs in every step, for every parameter and entry of its state, so it only compares addresses.
bool same_objects(const nb::list& containers, const nb::list& flat) {
  const auto expected = static_cast<Py_ssize_t>(flat.size());
  Py_ssize_t at = 0;
  const auto is_next = [&](PyObject* object) { return at < expected && PyList_GetItem(flat.ptr(), at++) == object; };
  for (Py_ssize_t c = 0; c < static_cast<Py_ssize_t>(containers.size()); ++c) {
    PyObject* const container = PyList_GetItem(containers.ptr(), c);
    if (PyList_Check(container)) {
      const Py_ssize_t items = PyList_Size(container);
      for (Py_ssize_t i = 0; i < items; ++i) {
        if (!is_next(PyList_GetItem(container, i))) return false;
      }
    } else if (PyDict_Check(container)) {
      PyObject* key = nullptr;
      PyObject* value = nullptr;
      for (Py_ssize_t place = 0; PyDict_Next(container, &place, &key, &value) != 0;) {
        if (!is_next(value)) return false;
      }
    } else {
      return false;
    }
  }
  return at == expected;
}

void bind_options(nb::module_& module) {
  nb::enum_<NonFinite>(module, "NonFinite")
      .value("ignore", NonFinite::kIgnore)
      .value("error", NonFinite::kError)
      .value("skip_step", NonFinite::kSkipStep)
      .value("zero", NonFinite::kZero);
  nb::enum_<StateType>(module, "StateType")
      .value("f32", StateType::kF32)
      .value("bf16", StateType::kBf16)
      .value("u16", StateType::kU16)
      .value("i64", StateType::kI64);
  nb::class_<ParameterMemory>(module, "ParameterMemory")
      .def(
          "__init__",
          [](ParameterMemory* memory, uintptr_t weight, WeightForm form, int32_t group, uintptr_t extra,
             uintptr_t momentum, uintptr_t second, uintptr_t statistics) {
            new (memory) ParameterMemory{reinterpret_cast<void*>(weight),
                                         reinterpret_cast<void*>(extra),
                                         form,
                                         group,
                                         reinterpret_cast<void*>(momentum),
                                         reinterpret_cast<void*>(second),
                                         reinterpret_cast<void*>(statistics)};
          },
          "weight"_a, "form"_a, "group"_a, "extra"_a = 0, "momentum"_a = 0, "second"_a = 0, "statistics"_a = 0,
          "Addresses of this rank's shard and, if holders keep it, of its state.");
  nb::class_<Device>(module, "Device")
      .def_static("cpu", [] { return Device{}; })
      .def_static(
          "cuda",
          [](int index, uintptr_t stream) {
            return Device{Device::Kind::kCuda, index, reinterpret_cast<void*>(stream)};
          },
          "index"_a, "stream"_a, "`stream` is the caller's stream, as torch.cuda.Stream.cuda_stream.");
  module.def("cuda_available", &cuda_available, "True if CUDA was built in and a device was found.");
  nb::class_<OptimizerOptions>(module, "OptimizerOptions")
      .def(nb::init<>())
      .def_rw("plan", &OptimizerOptions::plan)
      .def_rw("groups", &OptimizerOptions::groups)
      .def_rw("momentum", &OptimizerOptions::momentum)
      .def_rw("threads", &OptimizerOptions::threads)
      .def_rw("seed", &OptimizerOptions::seed)
      .def_prop_rw(
          "steps_address",
          [](const OptimizerOptions& options) { return reinterpret_cast<uintptr_t>(options.counters); },
          [](OptimizerOptions& options, uintptr_t address) { options.counters = reinterpret_cast<int64_t*>(address); },
          "The address of two int64 on the host, steps and seed; 0: the engine has its own.")
      .def_prop_rw(
          "updates_address",
          [](const OptimizerOptions& options) { return reinterpret_cast<uintptr_t>(options.updates); },
          [](OptimizerOptions& options, uintptr_t address) { options.updates = reinterpret_cast<int64_t*>(address); },
          "The address of one int64 per parameter, on the device; 0: the engine has its own.")
      .def_rw("device", &OptimizerOptions::device)
      .def(
          "scale_rows",
          [](OptimizerOptions& options, int32_t parameter, std::vector<int32_t> factor_of_row) {
            options.row_scaling.push_back({parameter, std::move(factor_of_row)});
          },
          "parameter"_a, "factor_of_row"_a, "Adds a RowScaling.")
      .def_rw("overlap", &OptimizerOptions::overlap)
      .def_rw("graph", &OptimizerOptions::graph);
  nb::class_<StepOptions>(module, "StepOptions")
      .def(nb::init<>())
      .def_rw("grad_scale", &StepOptions::grad_scale)
      .def_rw("max_grad_norm", &StepOptions::max_grad_norm)
      .def_rw("non_finite", &StepOptions::non_finite)
      .def_rw("grad_norm", &StepOptions::grad_norm)
      .def_rw("parameter_stats", &StepOptions::parameter_stats)
      .def(
          "set_row_factors",
          [](StepOptions& options, uintptr_t factors, int64_t count) {
            options.row_factors = {reinterpret_cast<const float*>(factors), static_cast<size_t>(count)};
          },
          "factors"_a, "count"_a,
          "The address of so many f32, which the caller keeps until the step is done; 0, 0: none.")
      .def_rw("trace", &StepOptions::trace);
}

}  // namespace

void bind_optimizer(nb::module_& module) {
  bind_options(module);
  module.def("same_objects", &same_objects, "containers"_a, "flat"_a,
             nb::sig("def same_objects(containers: list[typing.Any], flat: list[typing.Any]) -> bool"),
             "True if the items of lists and the values of dicts, in order, are the very objects of `flat`.");
  using NoGil = nb::call_guard<nb::gil_scoped_release>;
  nb::class_<Engine>(module, "Optimizer")
      .def(nb::init<Problem, OptimizerOptions, Communicator&, std::vector<ParameterMemory>>(), "problem"_a, "options"_a,
           "communicator"_a, "memory"_a, nb::keep_alive<1, 4>(), NoGil())
      .def_prop_ro("groups", [](Engine& engine) { return engine.optimizer().groups(); })
      .def(
          "group", [](Engine& engine, int32_t index) -> Group& { return engine.optimizer().group(index); },
          nb::rv_policy::reference_internal, "index"_a)
      .def_prop_ro("steps", [](Engine& engine) { return engine.optimizer().steps(); })
      .def_prop_ro("scratch_bytes", [](Engine& engine) { return engine.optimizer().scratch_bytes(); })
      .def(
          "step",
          [](Engine& engine, const Addresses& gradients, const StepOptions& options) {
            engine.optimizer().step(pointers(gradients), options);
          },
          "gradients"_a, "options"_a, NoGil(), "Makes one step. One address per parameter; 0: no gradient.")
      .def(
          "begin_step", [](Engine& engine, const StepOptions& options) { engine.optimizer().begin_step(options); },
          "options"_a, NoGil(), "With overlap: begins a step, before its first ready().")
      .def(
          "ready",
          [](Engine& engine, int32_t parameter, uintptr_t gradient) {
            engine.optimizer().ready(parameter, reinterpret_cast<void*>(gradient));
          },
          "parameter"_a, "gradient"_a, NoGil(),
          "Gives a gradient, which must stay as it is until step() returns; 0: lets waves go on.")
      .def(
          "grad_norm",
          [](Engine& engine, const Addresses& gradients, double grad_scale) {
            return engine.optimizer().grad_norm(pointers(gradients), grad_scale);
          },
          "gradients"_a, "grad_scale"_a = 1.0, NoGil())
      .def(
          "synchronize", [](Engine& engine) { engine.optimizer().synchronize(); }, NoGil(),
          "Waits for the steps enqueued on a device, and raises if one failed or was refused.")
      .def(
          "follow",
          [](Engine& engine, uintptr_t stream) { engine.optimizer().follow(reinterpret_cast<void*>(stream)); },
          "stream"_a, "Steps keep their order with this stream from now on.")
      .def(
          "move",
          [](Engine& engine, int32_t parameter, uintptr_t weight, uintptr_t extra, uintptr_t momentum, uintptr_t second,
             uintptr_t statistics) {
            engine.optimizer().move(parameter, reinterpret_cast<void*>(weight), reinterpret_cast<void*>(extra));
            engine.optimizer().move_state(parameter,
                                          {reinterpret_cast<void*>(momentum), reinterpret_cast<void*>(second),
                                           reinterpret_cast<void*>(statistics)});
          },
          "parameter"_a, "weight"_a, "extra"_a = 0, "momentum"_a = 0, "second"_a = 0, "statistics"_a = 0,
          "The caller has moved this rank's shard and state to these addresses; state at 0 has not moved.")
      .def(
          "restored", [](Engine& engine) { engine.optimizer().restored(); }, NoGil(),
          "The caller has restored weights and all state in place: step() works again after an error. Not "
          "collective.")
      .def(
          "stats", [](Engine& engine) { return stats(engine.optimizer().last_step()); },
          nb::sig("def stats(self) -> dict[str, typing.Any]"))
      .def(
          "parameter_stats",
          [](Engine& engine) {
            std::vector<std::tuple<double, double, double, double>> out;
            for (const ParameterStats& p : engine.optimizer().last_step().parameters) {
              out.emplace_back(p.grad_norm, p.update_rms, p.weight_rms, p.orthogonality_error);
            }
            return out;
          },
          "One (grad_norm, update_rms, weight_rms, orthogonality_error) per parameter; empty unless the last step was "
          "asked for it.")
      .def(
          "trace", [](Engine& engine) { return trace(engine.optimizer().trace()); },
          nb::sig("def trace(self) -> list[tuple[str, bool, int, int, int, int]]"),
          "(name, exchange, wave or -1, begin, end, bytes) of the last step, in ns of time.monotonic_ns(); empty "
          "unless "
          "it was asked for.")
      .def(
          "plan_text",
          [](Engine& engine, int width) {
            return engine.report([&](const plan_text::PlanReport& r) {
              return plan_text::plan_table(r, {false, width});
            });
          },
          "width"_a = 110)
      .def("plan_json",
           [](Engine& engine) {
             return engine.report([](const plan_text::PlanReport& r) { return plan_text::plan_json(r); });
           })
      .def(
          "state",
          [](Engine& engine) {
            nb::list out;
            for (const StateInfo& info : engine.optimizer().state()) {
              out.append(nb::make_tuple(info.name, info.type, info.shape));
            }
            return out;
          },
          nb::sig("def state(self) -> list[tuple[str, StateType, list[int]]]"),
          "Names, types and whole shapes of the state.")
      .def("export_state", &export_state, "name"_a,
           nb::sig("def export_state(self, name: str) -> tuple[StateType, list[int], bytes]"),
           "Type, shape and row-major bytes of a whole tensor. All ranks together.")
      .def("import_state", &import_state, "tensors"_a,
           nb::sig("def import_state(self, tensors: list[tuple[str, StateType, list[int], bytes]]) -> None"),
           "Replaces tensors of state(), given by name, type, shape and row-major bytes. All ranks together, with the "
           "same "
           "tensors.")
      .def(
          "save", [](Engine& engine, const std::string& directory) { engine.optimizer().save(directory); },
          "directory"_a, NoGil())
      .def(
          "load", [](Engine& engine, const std::string& directory) { engine.optimizer().load(directory); },
          "directory"_a, NoGil())
      .def(
          "reconnect", [](Engine& engine, Communicator& other) { engine.optimizer().reconnect(other); },
          "communicator"_a, nb::keep_alive<1, 2>(), NoGil());
}

}  // namespace muster::python
