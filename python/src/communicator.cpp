// Communicators for Python, and one that Python implements: muster/torch/communicator.py wraps torch's process groups.
#include "muster/communicator.h"

#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include "bindings.h"
#include "comm/collectives.h"
#include "muster/error.h"
#include "owner.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace muster::python {

namespace {

// Why a communicator is unusable; empty while it works. Shared with its requests, which may be the first to fail.
// Guarded by the GIL.
struct Fate {
  Failure cause;
};

// A Python exception as one line, with its class in front unless that is CommError, and with the code of a CommError.
Failure failure_of(const nb::python_error& error) {
  const bool ours = error.matches(nb::module_::import_("muster._muster").attr("CommError"));
  std::string text = nb::cast<std::string>(nb::str(error.value()));
  if (!ours) text = fmt::format("{}: {}", nb::cast<std::string>(error.type().attr("__name__")), text);
  for (char& c : text) c = c == '\n' ? ' ' : c;
  return {std::move(text), ours ? nb::cast<ErrorCode>(error.value().attr("code")) : ErrorCode::kOther};
}

// Runs `work` with the GIL. An exception from Python makes the communicator unusable and becomes a CommError; one that
// is no error, like KeyboardInterrupt, is passed on.
template <typename Work>
auto in_python(Fate& fate, const std::string& name, Work work) {
  const nb::gil_scoped_acquire gil;
  if (!fate.cause.empty()) throw CommError(comm::seen_by(name, fate.cause));
  try {
    return work();
  } catch (nb::python_error& error) {
    fate.cause = failure_of(error).within(name);
    if (!error.matches(PyExc_Exception)) throw;
    throw CommError(fate.cause);
  }
}

// Calls the function that post() returned. Gloo reports completion only to a waiter, and its own threads move the
// bytes: unless the function has a done(), test() only compares the clock with the deadline.
class PythonRequest final : public Request {
 public:
  PythonRequest(std::shared_ptr<Fate> fate, std::string name, nb::object wait, std::chrono::milliseconds timeout)
      : fate_(std::move(fate)), name_(std::move(name)), wait_(std::move(wait)), timeout_(timeout) {}
  ~PythonRequest() override {
    try {
      wait();
    } catch (const std::exception&) {
    }
    const nb::gil_scoped_acquire gil;
    wait_.reset();
  }

  bool test() override {
    if (done_) return true;
    const auto now = comm::Clock::now();
    if (!deadline_) deadline_ = comm::deadline_after(timeout_);
    const bool over =
        in_python(*fate_, name_, [&] { return nb::hasattr(wait_, "done") && nb::cast<bool>(wait_.attr("done")()); });
    if (over || now > *deadline_) wait();  // throws what is wrong
    return done_;
  }
  void wait() override {
    if (done_) return;
    in_python(*fate_, name_, [&] { wait_(); });
    done_ = true;
  }

 private:
  std::shared_ptr<Fate> fate_;
  std::string name_;
  nb::object wait_;
  std::chrono::milliseconds timeout_;
  std::optional<comm::Clock::time_point> deadline_;
  bool done_ = false;
};

class PythonCommunicator final : public comm::Collectives {
 public:
  PythonCommunicator(int32_t rank, int32_t size, double timeout, nb::callable post)
      : rank_(rank), size_(size), timeout_(static_cast<int64_t>(timeout * 1000)), post_(std::move(post)) {
    if (rank < 0 || rank >= size) throw InvalidArgument(fmt::format("rank {} of {}", rank, size));
    comm::check_options({timeout_});
  }
  ~PythonCommunicator() override {
    const nb::gil_scoped_acquire gil;
    post_.reset();
  }

  int32_t rank() const override { return rank_; }
  int32_t size() const override { return size_; }
  std::chrono::milliseconds timeout() const override { return timeout_; }
  void abort(std::string_view reason) override {
    const nb::gil_scoped_acquire gil;
    if (fate_->cause.empty()) fate_->cause = comm::aborted(rank_, reason);
  }

 private:
  std::unique_ptr<Request> post(comm::Posting posting) override {
    owner_.require("communicator");
    return in_python(*fate_, posting.name, [&]() -> std::unique_ptr<Request> {
      const auto list = [](const auto& messages) {
        nb::list out;
        for (const auto& message : messages) {
          out.append(nb::make_tuple(message.peer, reinterpret_cast<uintptr_t>(message.data), message.bytes));
        }
        return out;
      };
      nb::object wait = post_(posting.name, list(posting.sends), list(posting.receives));
      return std::make_unique<PythonRequest>(fate_, posting.name, std::move(wait), timeout_);
    });
  }

  const Owner owner_;
  int32_t rank_;
  int32_t size_;
  std::chrono::milliseconds timeout_;
  nb::callable post_;
  std::shared_ptr<Fate> fate_ = std::make_shared<Fate>();
};

// The bytes of every rank, in the order of the ranks; sizes may differ. All ranks together.
std::vector<std::string> gather(Communicator& communicator, std::string_view mine, std::string_view label) {
  const auto bytes = static_cast<int64_t>(mine.size());
  std::vector<int64_t> sizes(static_cast<size_t>(communicator.size()));
  communicator.all_gather(&bytes, sizes.data(), sizeof bytes, label)->wait();
  std::vector<std::string> all(sizes.size());
  std::vector<Send> sends;
  std::vector<Receive> receives;
  for (int32_t r = 0; r < communicator.size(); ++r) {
    all[r].resize(static_cast<size_t>(sizes[r]));
    sends.push_back({r, mine.data(), bytes});
    receives.push_back({r, all[r].data(), sizes[r]});
  }
  communicator.exchange(sends, receives, label)->wait();
  return all;
}

}  // namespace

void bind_communicator(nb::module_& module) {
  nb::class_<Communicator>(module, "Communicator")
      .def_prop_ro("rank", &Communicator::rank)
      .def_prop_ro("size", &Communicator::size)
      .def(
          "barrier", [](Communicator& communicator, std::string_view label) { communicator.barrier(label)->wait(); },
          "label"_a, nb::call_guard<nb::gil_scoped_release>())
      .def(
          "gather",
          [](Communicator& communicator, const nb::bytes& mine, std::string_view label) {
            const std::string_view given(mine.c_str(), mine.size());
            std::vector<std::string> all;
            {
              const nb::gil_scoped_release no_gil;
              all = gather(communicator, given, label);
            }
            std::vector<nb::bytes> out;
            for (const std::string& theirs : all) out.emplace_back(theirs.data(), theirs.size());
            return out;
          },
          "mine"_a, "label"_a, "The bytes of every rank; sizes may differ. All ranks together.")
      .def(
          "all_reduce_max",
          [](Communicator& communicator, uintptr_t values, int64_t count, std::string_view label) {
            const std::span<float> data(reinterpret_cast<float*>(values), static_cast<size_t>(count));
            communicator.all_reduce(data, ReduceOp::kMax, label)->wait();
          },
          "values"_a, "count"_a, "label"_a, nb::call_guard<nb::gil_scoped_release>(),
          "Replaces so many f32 on the host, at this address, by the largest of all ranks; NaN wins. All ranks "
          "together.")
      .def("abort", &Communicator::abort, "reason"_a);
  nb::class_<PythonCommunicator, Communicator>(module, "PythonCommunicator")
      .def(nb::init<int32_t, int32_t, double, nb::callable>(), "rank"_a, "size"_a, "timeout"_a, "post"_a,
           nb::sig("def __init__(self, rank: int, size: int, timeout: float, post: typing.Callable[[str, "
                   "list[tuple[int, int, int]], list[tuple[int, int, int]]], typing.Callable[[], None]]) -> None"),
           "`timeout` is in seconds. `post(name, sends, receives)` starts messages, given as (peer, address, bytes), "
           "and returns a function that waits for all of them. The function may have a done(), which returns at once. "
           "What any of them raises becomes a CommError.");
  module.def(
      "single_communicator", [] { return std::move(make_local_communicators(1).front()); },
      "A communicator of one rank.");
}

}  // namespace muster::python
