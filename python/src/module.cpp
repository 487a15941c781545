#include <nanobind/nanobind.h>

#include "bindings.h"

namespace nb = nanobind;

NB_MODULE(_muster, module) {
  module.doc() = "The engine of Muster. muster.torch is what a training script imports.";
  // Some instances rightly live until the process ends: torch keeps the hooks of a parameter, and with a hook the
  // globals of its module, where Python's garbage collector does not see them. Other nanobind modules keep their
  // warnings: python/CMakeLists.txt gives this module a domain of its own.
  nb::set_leak_warnings(false);
  muster::python::bind_errors(module);
  muster::python::bind_problem(module);
  muster::python::bind_communicator(module);
  muster::python::bind_nccl(module);
  muster::python::bind_optimizer(module);
  muster::python::bind_orthogonalization(module);
  muster::python::bind_rules(module);
  muster::python::bind_build_info(module);
}
