// Rules that Python implements: muster/torch/rule.py calls them.
#include "muster/rule.h"

#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "muster/optimizer.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace muster::python {

namespace {

// What a rule raised: one line for other ranks, and the exception for the caller of this one.
class Raised : public std::runtime_error {
 public:
  explicit Raised(nb::python_error&& error)
      : std::runtime_error(one_line(error)), error_(std::make_shared<nb::python_error>(std::move(error))) {}

  void restore() const { error_->restore(); }

 private:
  static std::string one_line(const nb::python_error& error) {
    std::string text = fmt::format("{}: {}", nb::cast<std::string>(error.type().attr("__name__")),
                                   nb::cast<std::string>(nb::str(error.value())));
    for (char& c : text) c = c == '\n' ? ' ' : c;
    return text;
  }
  std::shared_ptr<nb::python_error> error_;  // exceptions are copied
};

using Declared = std::vector<std::pair<std::string, RuleStateShape>>;

class PythonRule final : public Rule {
 public:
  PythonRule(std::string name, const Declared& state, bool own_momentum, bool batched, nb::callable call)
      : name_(std::move(name)), own_momentum_(own_momentum), batched_(batched), call_(std::move(call)) {
    for (const auto& [entry, shape] : state) state_.push_back({entry, shape});
  }
  PythonRule(const PythonRule&) = delete;
  PythonRule& operator=(const PythonRule&) = delete;
  ~PythonRule() override {
    const nb::gil_scoped_acquire gil;
    call_.reset();
  }

  std::string name() const override { return name_; }
  std::vector<RuleState> state() const override { return state_; }
  bool own_momentum() const override { return own_momentum_; }
  bool batched() const override { return batched_; }
  void update(const RuleBatch& batch) override {
    const nb::gil_scoped_acquire gil;
    try {
      nb::list state;
      for (const RuleBatch::State& entry : batch.state) {
        state.append(nb::make_tuple(reinterpret_cast<uintptr_t>(entry.data), entry.stride));
      }
      call_(reinterpret_cast<uintptr_t>(batch.updates), nb::make_tuple(batch.count, batch.rows, batch.columns), state,
            batch.group_index, batch.step);
    } catch (nb::python_error& error) {
      throw Raised(std::move(error));
    }
  }

 private:
  std::string name_;
  std::vector<RuleState> state_;
  bool own_momentum_;
  bool batched_;
  nb::callable call_;
};

}  // namespace

void bind_rules(nb::module_& module) {
  nb::register_exception_translator(
      [](const std::exception_ptr& thrown, void*) {
        try {
          std::rethrow_exception(thrown);
        } catch (const Raised& raised) {
          raised.restore();
        }
      },
      nullptr);
  nb::enum_<RuleStateShape>(module, "RuleStateShape")
      .value("rows", RuleStateShape::kRows)
      .value("columns", RuleStateShape::kColumns)
      .value("matrix", RuleStateShape::kMatrix)
      .value("rows_by_rows", RuleStateShape::kRowsByRows)
      .value("columns_by_columns", RuleStateShape::kColumnsByColumns);
  module.def(
      "set_rule",
      [](OptimizerOptions& options, size_t group, std::string name, const Declared& state, bool own_momentum,
         bool batched, nb::callable call) {
        if (options.rules.size() <= group) options.rules.resize(group + 1);
        options.rules[group] =
            std::make_shared<PythonRule>(std::move(name), state, own_momentum, batched, std::move(call));
      },
      nb::sig("def set_rule(options: OptimizerOptions, group: int, name: str, state: list[tuple[str, RuleStateShape]], "
              "own_momentum: bool, batched: bool, call: typing.Callable[..., None]) -> None"),
      "options"_a, "group"_a, "name"_a, "state"_a, "own_momentum"_a, "batched"_a, "call"_a,
      "Sets the rule of a group. call(address of f32 updates, (count, rows, columns), [(address, stride) per entry], "
      "group, step) replaces the updates.");
}

}  // namespace muster::python
