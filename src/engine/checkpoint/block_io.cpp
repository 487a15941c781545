#include "engine/checkpoint/block_io.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "base/text.h"
#include "engine/checkpoint/checksum.h"
#include "engine/state/state_values.h"

namespace muster::engine {

namespace {

// Small enough for the L2 cache, where the checksum leaves the data for the write, and large enough for a system call.
constexpr int64_t kBufferBytes = int64_t{1} << 20;
// Rows this close are read in one call together with the bytes between them: another call costs as much as the copy.
constexpr int64_t kGapBytes = int64_t{4} << 10;

// The block as one row, if its rows are adjacent both in the tensor and in memory.
StateBlock merged(StateBlock block) {
  const bool dense = block.index_stride == block.columns && block.stride == block.columns;
  if (block.rows > 1 && dense) {
    block.columns *= block.rows;
    block.rows = 1;
  }
  return block;
}

}  // namespace

void check_block(const StateBlock& block, int64_t elements) {
  bool good = block.rows >= 0 && block.columns >= 0 && block.index >= 0;
  if (good && (block.rows == 0 || block.columns == 0)) return;
  int64_t end = 0;
  int64_t span = 0;
  if (block.rows > 1) {
    good = good && block.index_stride >= block.columns && block.stride >= block.columns &&
           !__builtin_mul_overflow(block.rows - 1, block.index_stride, &end) &&
           !__builtin_mul_overflow(block.rows - 1, block.stride, &span);
  }
  good = good && !__builtin_add_overflow(end, block.columns, &end) && !__builtin_add_overflow(end, block.index, &end) &&
         end <= elements && block.data != nullptr;
  if (!good) {
    base::fail("{} x {} elements from element {} on, rows {} apart (in memory {}{}), are not part of {} elements",
               block.rows, block.columns, block.index, block.index_stride, block.stride,
               block.data == nullptr ? ", which is null" : "", elements);
  }
}

BlockWriter::BlockWriter(const base::File& file)
    : file_(file), buffer_(std::make_unique_for_overwrite<std::byte[]>(kBufferBytes)) {}

uint64_t BlockWriter::write(const TensorPlace& place, const StateBlock& strided) {
  const StateBlock block = merged(strided);
  const int64_t most = kBufferBytes / place.width;
  uint64_t sum = 0;
  if (block.device != nullptr) {
    const auto copy = std::make_unique_for_overwrite<std::byte[]>(kBufferBytes);
    for_each_part(block, place.width, most, [&](const StateBlock& part) {
      part.device->read(copy.get(), part.data, host_rows(part, place.width));
      sum += write(place, on_host(part, copy.get()));
    });
    return sum;
  }
  for (int64_t row = 0; row < block.rows; ++row) {
    for (int64_t column = 0; column < block.columns; column += most) {
      const int64_t count = std::min(most, block.columns - column);
      const int64_t index = block.index + row * block.index_stride + column;
      const std::byte* const data = block.data + (row * block.stride + column) * place.width;
      sum += checksum(data, count, index, place.width);
      append(place.offset + index * place.width, data, count * place.width);
    }
  }
  return sum;
}

void BlockWriter::append(int64_t offset, const std::byte* data, int64_t bytes) {
  if (offset != begin_ + buffered_ || buffered_ + bytes > kBufferBytes) flush();
  if (bytes == kBufferBytes) {
    file_.write_at(offset, data, bytes);
    return;
  }
  if (buffered_ == 0) begin_ = offset;
  std::memcpy(buffer_.get() + buffered_, data, static_cast<size_t>(bytes));
  buffered_ += bytes;
}

void BlockWriter::flush() {
  file_.write_at(begin_, buffer_.get(), buffered_);
  buffered_ = 0;
}

BlockReader::BlockReader(const base::File& file, ReadMode mode)
    : file_(file), mode_(mode), buffer_(std::make_unique_for_overwrite<std::byte[]>(kBufferBytes)) {}

uint64_t BlockReader::read(const TensorPlace& place, const StateBlock& strided) {
  const StateBlock block = merged(strided);
  const int64_t most = kBufferBytes / place.width;  // elements
  uint64_t sum = 0;
  if (block.device != nullptr && mode_ == ReadMode::kFill) {
    const auto copy = std::make_unique_for_overwrite<std::byte[]>(kBufferBytes);
    for_each_part(block, place.width, most, [&](const StateBlock& part) {
      sum += read(place, on_host(part, copy.get()));
      part.device->write(part.data, copy.get(), host_rows(part, place.width));
    });
    return sum;
  }
  const auto take = [&](int64_t row, int64_t column, int64_t count, const std::byte* from) {
    sum += checksum(from, count, block.index + row * block.index_stride + column, place.width);
    if (mode_ == ReadMode::kVerify) {
      if (!refused_.empty() || place.info == nullptr) return;
      const std::string refused = refused_value(*place.info, {from, static_cast<size_t>(count * place.width)});
      if (!refused.empty()) refused_ = fmt::format("state {}: {}", base::in_quotes(place.info->name), refused);
      return;
    }
    std::memcpy(block.data + (row * block.stride + column) * place.width, from,
                static_cast<size_t>(count * place.width));
  };
  const bool close = block.columns <= most && block.index_stride - block.columns <= kGapBytes / place.width;
  for (int64_t row = 0; row < block.rows;) {
    const int64_t index = block.index + row * block.index_stride;
    if (close && block.rows > 1) {
      const int64_t rows = std::min(block.rows - row, (most - block.columns) / block.index_stride + 1);
      const int64_t span = (rows - 1) * block.index_stride + block.columns;
      file_.read_at(place.offset + index * place.width, buffer_.get(), span * place.width);
      for (int64_t i = 0; i < rows; ++i) {
        take(row + i, 0, block.columns, buffer_.get() + i * block.index_stride * place.width);
      }
      row += rows;
      continue;
    }
    for (int64_t column = 0; column < block.columns; column += most) {
      const int64_t count = std::min(most, block.columns - column);
      file_.read_at(place.offset + (index + column) * place.width, buffer_.get(), count * place.width);
      take(row, column, count, buffer_.get());
    }
    ++row;
  }
  return sum;
}

}  // namespace muster::engine
