// NCCL communicators for Python, made from an id that is sent through any process group.
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>

#include "bindings.h"
#include "comm/interruptible.h"
#include "kernels/kernels.h"
#include "muster/communicator.h"
#include "muster/error.h"
#include "owner.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace muster::python {

namespace {

// Destroys communicators in threads. The destructor waits for all ranks, and Python collects garbage at a different
// time on each: the first rank would wait while the others wait for it in another operation.
class Destroyers {
 public:
  // With the GIL. A forked child leaks the communicator that it inherits: its process is not one of the ranks.
  void destroy(std::unique_ptr<Communicator> communicator) {
    if (!owner_.is_this_process()) {
      static_cast<void>(communicator.release());
      return;
    }
    if (!ending_) {
      threads_.emplace_back([moved = std::move(communicator)]() mutable { moved.reset(); });
      return;
    }
    const nb::gil_scoped_release no_gil;
    communicator.reset();
  }
  // At exit. A communicator that is destroyed later waits in its own thread.
  void join() {
    if (!owner_.is_this_process()) return;
    ending_ = true;
    const nb::gil_scoped_release no_gil;
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  const Owner owner_;
  bool ending_ = false;
  std::vector<std::thread> threads_;
};

Destroyers& destroyers() {
  static auto* const all = new Destroyers;  // never destroyed: threads may outlive the module
  return *all;
}

NcclId to_id(const nb::bytes& bytes) {
  NcclId id;
  if (bytes.size() != id.bytes.size()) throw InvalidArgument("a NCCL id has 128 bytes");
  std::memcpy(id.bytes.data(), bytes.data(), id.bytes.size());
  return id;
}

// Raises what a signal's handler raises, as KeyboardInterrupt. Python runs handlers in the main thread alone.
void handle_signals() {
  const nb::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

std::shared_ptr<Communicator> make(const nb::bytes& bytes, int32_t rank, int32_t size, double timeout, int device) {
  const NcclId id = to_id(bytes);
  destroyers();  // this process owns it from now on
  std::unique_ptr<Communicator> made;
  {
    const nb::gil_scoped_release no_gil;
    kernels::use_cuda_device(device);
    const CommOptions options{std::chrono::milliseconds(static_cast<int64_t>(timeout * 1000))};
    made = comm::make_interruptible(make_nccl_communicator(id, rank, size, options), handle_signals);
  }
  return {made.release(), [](Communicator* communicator) {
            const nb::gil_scoped_acquire gil;
            destroyers().destroy(std::unique_ptr<Communicator>(communicator));
          }};
}

}  // namespace

void bind_nccl(nb::module_& module) {
  module.def("nccl_available", &nccl_available, "True if NCCL was built in and libnccl was found.");
  module.def("make_nccl_id", [] {
    const NcclId id = make_nccl_id();
    return nb::bytes(id.bytes.data(), id.bytes.size());
  });
  module.def("make_nccl_communicator", &make, "id"_a, "rank"_a, "size"_a, "timeout"_a, "device"_a,
             "All ranks together. `timeout` is in seconds. Makes `device` the current CUDA device.");
  nb::module_::import_("atexit").attr("register")(nb::cpp_function([] { destroyers().join(); }));
}

}  // namespace muster::python
