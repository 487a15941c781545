#include "engine/state/whole_tensor.h"

#include <cstring>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "muster/error.h"

namespace muster::engine {

namespace {

// What precedes a row in a message.
struct RowHeader {
  int64_t index = 0;
  int64_t count = 0;
};

template <typename Visit>
void for_each_row(const StateBlock& piece, int64_t width, Visit visit) {
  for (int64_t i = 0; i < piece.rows; ++i) {
    visit(RowHeader{piece.index + i * piece.index_stride, piece.columns}, piece.data + i * piece.stride * width);
  }
}

}  // namespace

StateTensor gather(const StateShard& slice, Communicator& communicator) {
  const int64_t width = byte_size(slice.info.type);
  StateTensor out{slice.info, {}};
  out.data.resize(static_cast<size_t>(element_count(slice.info.shape) * width));

  // Nobody knows what others have: messages say it themselves.
  std::vector<std::byte> mine;
  for (const StateBlock& piece : slice.pieces) {
    if (!piece.counts) continue;
    std::vector<std::byte> copy;
    if (piece.device != nullptr) {
      copy.resize(static_cast<size_t>(piece.rows * piece.columns * width));
      piece.device->read(copy.data(), piece.data, host_rows(piece, width));
    }
    const StateBlock here = piece.device != nullptr ? on_host(piece, copy.data()) : piece;
    for_each_row(here, width, [&](const RowHeader& row, const std::byte* data) {
      const auto* const header = reinterpret_cast<const std::byte*>(&row);
      mine.insert(mine.end(), header, header + sizeof row);
      mine.insert(mine.end(), data, data + row.count * width);
    });
  }
  const auto ranks = static_cast<size_t>(communicator.size());
  std::vector<int64_t> sizes(ranks);
  const auto size = static_cast<int64_t>(mine.size());
  communicator.all_gather(&size, sizes.data(), sizeof size, "sizes of " + slice.info.name)->wait();
  std::vector<std::vector<std::byte>> all(ranks);
  std::vector<Send> sends;
  std::vector<Receive> receives;
  for (size_t r = 0; r < ranks; ++r) {
    all[r].resize(static_cast<size_t>(sizes[r]));
    sends.push_back({static_cast<int32_t>(r), mine.data(), size});
    receives.push_back({static_cast<int32_t>(r), all[r].data(), sizes[r]});
  }
  communicator.exchange(sends, receives, "export of " + slice.info.name)->wait();

  for (const std::vector<std::byte>& message : all) {
    for (size_t at = 0; at < message.size();) {
      RowHeader row;
      std::memcpy(&row, message.data() + at, sizeof row);
      at += sizeof row;
      const auto bytes = static_cast<size_t>(row.count * width);
      std::memcpy(out.data.data() + row.index * width, message.data() + at, bytes);
      at += bytes;
    }
  }
  return out;
}

void fill(const StateShard& slice, std::span<const std::byte> whole) {
  const int64_t width = byte_size(slice.info.type);
  for (const StateBlock& piece : slice.pieces) {
    std::vector<std::byte> copy(piece.device != nullptr ? static_cast<size_t>(piece.rows * piece.columns * width) : 0);
    const StateBlock here = piece.device != nullptr ? on_host(piece, copy.data()) : piece;
    for_each_row(here, width, [&](const RowHeader& row, std::byte* data) {
      std::memcpy(data, whole.data() + row.index * width, static_cast<size_t>(row.count * width));
    });
    if (piece.device != nullptr) piece.device->write(piece.data, copy.data(), host_rows(piece, width));
  }
}

void check_like(const StateInfo& expected, const StateTensor& tensor) {
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
}

}  // namespace muster::engine
