// Orthogonalization as a function for Python. Memory is given as addresses.
#include <nanobind/nanobind.h>

#include "bindings.h"
#include "muster/orthogonalize.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace muster::python {

void bind_orthogonalization(nb::module_& module) {
  nb::class_<Orthogonalization>(module, "Orthogonalization")
      .def(
          "__init__",
          [](Orthogonalization* call, int64_t count, int64_t rows, int64_t columns, Dtype dtype,
             const Coefficients& coefficients, const Device& device, int threads) {
            new (call) Orthogonalization{.count = count,
                                         .rows = rows,
                                         .columns = columns,
                                         .dtype = dtype,
                                         .coefficients = coefficients,
                                         .device = device,
                                         .threads = threads};
          },
          "count"_a, "rows"_a, "columns"_a, "dtype"_a, "coefficients"_a, "device"_a, "threads"_a)
      .def_prop_ro("workspace_bytes", &orthogonalize_workspace, "Bytes of workspace on a device; 0 on the CPU.")
      .def(
          "run",
          [](Orthogonalization call, uintptr_t matrices, uintptr_t workspace) {
            call.matrices = reinterpret_cast<void*>(matrices);
            call.workspace = reinterpret_cast<void*>(workspace);
            orthogonalize(call);
          },
          "matrices"_a, "workspace"_a, nb::call_guard<nb::gil_scoped_release>(),
          "Replaces the matrices by their orthogonal factors; on a device, enqueues that.");
}

}  // namespace muster::python
