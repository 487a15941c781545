#include "engine/step/fail_together.h"

#include <new>
#include <utility>

#include <fmt/format.h>

#include "muster/error.h"

namespace muster::engine {

namespace {

// The failure as bytes: the code, the parameter's name, a zero, the text.
std::string pack(const Failure& failure) {
  return static_cast<char>(failure.code) + failure.parameter + '\0' + failure.text;
}

Failure unpack(const std::string& bytes) {
  const size_t zero = bytes.find('\0', 1);
  return {bytes.substr(zero + 1), static_cast<ErrorCode>(bytes[0]), bytes.substr(1, zero - 1)};
}

Failure first_failure(Communicator& comm, std::string_view label, const std::function<void()>& work) {
  Failure failure;
  int64_t first = comm.rank();
  try {
    work();
    first = comm.size();
  } catch (const Error& error) {
    failure = error.failure();
  } catch (const std::bad_alloc&) {
    failure = {"out of memory", ErrorCode::kResource};
  } catch (const std::exception& error) {
    failure = error.what();
  }
  if (first == comm.rank() && comm.size() > 1) failure = failure.within(fmt::format("rank {}", comm.rank()));
  comm.all_reduce({&first, 1}, ReduceOp::kMin, label)->wait();
  if (first == comm.size()) return {};
  std::string packed = pack(failure);
  auto bytes = static_cast<int64_t>(packed.size());
  const auto root = static_cast<int32_t>(first);
  comm.broadcast(&bytes, sizeof bytes, root, label)->wait();
  packed.resize(static_cast<size_t>(bytes));
  comm.broadcast(packed.data(), bytes, root, label)->wait();
  return unpack(packed);
}

}  // namespace

std::string failure_of_any(Communicator& comm, std::string_view label, const std::function<void()>& work) {
  return first_failure(comm, label, work).text;
}

void fail_together(Communicator& comm, std::string_view label, const std::function<void()>& work) {
  Failure failure = first_failure(comm, label, work);
  if (failure.empty()) return;
  if (failure.code == ErrorCode::kResource) throw ResourceError(std::move(failure));
  throw InvalidArgument(std::move(failure));
}

}  // namespace muster::engine
