// What this build contains, for muster.info().
#include "build_info.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "bindings.h"

namespace nb = nanobind;

namespace muster::python {

void bind_build_info(nb::module_& module) {
  module.def(
      "build_info", [] { return build_info_json(build_info()); },
      "What this build contains and finds on this machine, as a JSON object.");
}

}  // namespace muster::python
