#include "engine/step/fail_together.h"

#include <fmt/format.h>

#include "muster/error.h"

namespace muster::engine {

std::string failure_of_any(Communicator& comm, std::string_view label, const std::function<void()>& work) {
  std::string text;
  int64_t first = comm.size();
  try {
    work();
  } catch (const std::exception& error) {
    first = comm.rank();
    text = comm.size() == 1 ? error.what() : fmt::format("rank {}: {}", comm.rank(), error.what());
  }
  comm.all_reduce({&first, 1}, ReduceOp::kMin, label)->wait();
  if (first == comm.size()) return {};
  auto bytes = static_cast<int64_t>(text.size());
  const auto root = static_cast<int32_t>(first);
  comm.broadcast(&bytes, sizeof bytes, root, label)->wait();
  text.resize(static_cast<size_t>(bytes));
  comm.broadcast(text.data(), bytes, root, label)->wait();
  return text;
}

void together(Communicator& comm, std::string_view label, const std::function<void()>& work) {
  const std::string failure = failure_of_any(comm, label, work);
  if (!failure.empty()) throw InvalidArgument(failure);
}

}  // namespace muster::engine
