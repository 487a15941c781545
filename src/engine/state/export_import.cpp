#include "engine/state/export_import.h"

#include <cstring>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "engine/state/state_values.h"
#include "muster/error.h"

namespace muster::engine {

namespace {

// Precedes each row in a message.
struct RowHeader {
  int64_t index = 0;  // in the tensor
  int64_t count = 0;
};

template <typename Visit>
void for_each_row(const StateBlock& block, int64_t width, Visit visit) {
  for (int64_t i = 0; i < block.rows; ++i) {
    visit(RowHeader{block.index + i * block.index_stride, block.columns}, block.data + i * block.stride * width);
  }
}

// Memory for a dense copy of a block that is on a device; empty if it is on the host.
std::vector<std::byte> copy_memory(const StateBlock& block, int64_t width) {
  return std::vector<std::byte>(block.device != nullptr ? static_cast<size_t>(block.rows * block.columns * width) : 0);
}

// The rows of this rank's primary blocks, each with its header: only the sender knows what it holds.
std::vector<std::byte> message_of(const StateShard& shard) {
  const int64_t width = byte_size(shard.info.type);
  std::vector<std::byte> message;
  for (const StateBlock& block : shard.blocks) {
    if (!block.primary) continue;
    std::vector<std::byte> copy = copy_memory(block, width);
    if (block.device != nullptr) block.device->read(copy.data(), block.data, host_rows(block, width));
    const StateBlock host = block.device != nullptr ? on_host(block, copy.data()) : block;
    for_each_row(host, width, [&](const RowHeader& row, const std::byte* data) {
      const auto* const header = reinterpret_cast<const std::byte*>(&row);
      message.insert(message.end(), header, header + sizeof row);
      message.insert(message.end(), data, data + row.count * width);
    });
  }
  return message;
}

void unpack(std::span<const std::byte> message, int64_t width, std::span<std::byte> whole) {
  for (size_t at = 0; at < message.size();) {
    RowHeader row;
    std::memcpy(&row, message.data() + at, sizeof row);
    at += sizeof row;
    const auto bytes = static_cast<size_t>(row.count * width);
    std::memcpy(whole.data() + row.index * width, message.data() + at, bytes);
    at += bytes;
  }
}

}  // namespace

StateTensor export_tensor(const StateShard& shard, Communicator& communicator) {
  const std::vector<std::byte> mine = message_of(shard);
  const auto ranks = static_cast<size_t>(communicator.size());
  std::vector<int64_t> sizes(ranks);
  const auto size = static_cast<int64_t>(mine.size());
  communicator.all_gather(&size, sizes.data(), sizeof size, "sizes of " + shard.info.name)->wait();
  std::vector<std::vector<std::byte>> messages(ranks);
  std::vector<Send> sends;
  std::vector<Receive> receives;
  for (size_t r = 0; r < ranks; ++r) {
    messages[r].resize(static_cast<size_t>(sizes[r]));
    sends.push_back({static_cast<int32_t>(r), mine.data(), size});
    receives.push_back({static_cast<int32_t>(r), messages[r].data(), sizes[r]});
  }
  communicator.exchange(sends, receives, "export of " + shard.info.name)->wait();

  const int64_t width = byte_size(shard.info.type);
  StateTensor out{shard.info, {}};
  out.data.resize(static_cast<size_t>(element_count(shard.info.shape) * width));
  for (const std::vector<std::byte>& message : messages) unpack(message, width, out.data);
  return out;
}

void import_tensor(const StateShard& shard, std::span<const std::byte> whole) {
  const int64_t width = byte_size(shard.info.type);
  for (const StateBlock& block : shard.blocks) {
    std::vector<std::byte> copy = copy_memory(block, width);
    const StateBlock host = block.device != nullptr ? on_host(block, copy.data()) : block;
    for_each_row(host, width, [&](const RowHeader& row, std::byte* data) {
      std::memcpy(data, whole.data() + row.index * width, static_cast<size_t>(row.count * width));
    });
    if (block.device != nullptr) block.device->write(block.data, copy.data(), host_rows(block, width));
  }
}

void check_import(const StateInfo& expected, const StateTensor& tensor) {
  if (tensor.shape != expected.shape) {
    throw InvalidArgument(fmt::format("state \"{}\": shape [{}], expected [{}]", expected.name,
                                      fmt::join(tensor.shape, ", "), fmt::join(expected.shape, ", ")));
  }
  if (tensor.type != expected.type) {
    throw InvalidArgument(fmt::format("state \"{}\": stored in another type than here", expected.name));
  }
  const int64_t bytes = element_count(expected.shape) * byte_size(expected.type);
  if (static_cast<int64_t>(tensor.data.size()) != bytes) {
    throw InvalidArgument(fmt::format("state \"{}\": {} bytes, expected {}", expected.name, tensor.data.size(), bytes));
  }
  if (const std::string refused = refused_value(expected, tensor.data); !refused.empty()) {
    throw InvalidArgument(fmt::format("state \"{}\": {}", expected.name, refused));
  }
}

}  // namespace muster::engine
