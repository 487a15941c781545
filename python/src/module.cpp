#include <nanobind/nanobind.h>

#include "bindings.h"
#include "muster/error.h"

namespace nb = nanobind;

NB_MODULE(_muster, module) {
  module.doc() = "The engine of Muster. muster.torch is what a training script imports.";
  // Instances that live until the process ends are legitimate: torch keeps the hooks of a parameter, and with a hook
  // the globals of its module, where Python's garbage collector does not see them. Other nanobind modules keep their
  // warnings: python/CMakeLists.txt gives this one its own domain.
  nb::set_leak_warnings(false);
  // What Python code catches anyway; the caller's mistakes are ValueErrors.
  nb::exception<muster::Error>(module, "Error", PyExc_RuntimeError);
  nb::exception<muster::InvalidArgument>(module, "InvalidArgument", PyExc_ValueError);
  nb::exception<muster::CommError>(module, "CommError", PyExc_RuntimeError);
  nb::exception<muster::DeviceError>(module, "DeviceError", PyExc_RuntimeError);
  nb::exception<muster::Internal>(module, "Internal", PyExc_RuntimeError);
  muster::python::bind_problem(module);
  muster::python::bind_communicator(module);
  muster::python::bind_nccl(module);
  muster::python::bind_optimizer(module);
  muster::python::bind_build_info(module);
}
