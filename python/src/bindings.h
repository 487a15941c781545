// The parts of the Python module muster._muster, one per file.
#pragma once

#include <nanobind/nanobind.h>

namespace muster::python {

void bind_errors(nanobind::module_& module);  // before the others: they throw them
void bind_problem(nanobind::module_& module);
void bind_communicator(nanobind::module_& module);
void bind_nccl(nanobind::module_& module);
void bind_optimizer(nanobind::module_& module);
void bind_orthogonalization(nanobind::module_& module);  // after the problem and the optimizer, whose types it takes
void bind_rules(nanobind::module_& module);
void bind_build_info(nanobind::module_& module);

}  // namespace muster::python
