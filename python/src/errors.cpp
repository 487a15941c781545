// Muster's errors as Python exceptions, with the code and the parameter as attributes.
#include <exception>

#include <nanobind/nanobind.h>

#include "bindings.h"
#include "muster/error.h"

namespace nb = nanobind;

namespace muster::python {

namespace {

// Sets the Python error for `error`, of the given exception class.
void raise(nb::handle type, const Error& error) {
  try {
    nb::object raised = type(error.what());
    raised.attr("code") = error.code();
    raised.attr("parameter") = error.parameter().c_str();
    PyErr_SetObject(type.ptr(), raised.ptr());
  } catch (nb::python_error& failed) {
    failed.restore();
  }
}

// Later translators are tried first, so a class comes after the one that it derives from in C++.
template <typename E>
void bind_error(nb::module_& module, const char* name, PyObject* base, const char* doc) {
  const nb::exception<E> type(module, name, base);
  type.attr("__doc__") = doc;
  // Errors that Python raises have them too.
  type.attr("code") = ErrorCode::kOther;
  type.attr("parameter") = "";
  nb::register_exception_translator(
      [](const std::exception_ptr& thrown, void* own_type) {
        try {
          std::rethrow_exception(thrown);
        } catch (const E& error) {
          raise(static_cast<PyObject*>(own_type), error);
        }
      },
      type.ptr());
}

}  // namespace

void bind_errors(nb::module_& module) {
  nb::enum_<ErrorCode>(module, "ErrorCode", "What went wrong, where the class of the error does not tell.")
      .value("other", ErrorCode::kOther)
      .value("replica_weights_differ", ErrorCode::kReplicaWeightsDiffer)
      .value("replica_gradients_differ", ErrorCode::kReplicaGradientsDiffer)
      .value("scratch_cap_too_small", ErrorCode::kScratchCapTooSmall)
      .value("rank_missing", ErrorCode::kRankMissing)
      .value("resource", ErrorCode::kResource);
  // What Python code catches anyway; the caller's mistakes are ValueErrors.
  bind_error<Error>(module, "Error", PyExc_RuntimeError,
                    "A step, save or load failed for a reason that no other class of error has.");
  bind_error<InvalidArgument>(
      module, "InvalidArgument", PyExc_ValueError,
      "The caller's mistake. Nothing has been changed, unless the text says that a step broke off.");
  bind_error<ResourceError>(module, "ResourceError", PyExc_RuntimeError,
                            "The machine failed: a full disk, a failed read or write, no memory.");
  bind_error<CommError>(module, "CommError", PyExc_RuntimeError,
                        "A rank died, left or did not arrive in time. Communication has ended for good.");
  bind_error<DeviceError>(module, "DeviceError", PyExc_RuntimeError, "A call of CUDA or one of its libraries failed.");
  bind_error<Internal>(module, "Internal", PyExc_RuntimeError, "A bug in Muster: please report it.");
}

}  // namespace muster::python
