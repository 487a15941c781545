#include "engine/checkpoint/block_io.h"

#include <algorithm>
#include <cstring>

#include "base/text.h"
#include "engine/checkpoint/checksum.h"

namespace muster::engine {

namespace {

// Fits the second cache, where the checksum leaves what is then written, and makes a system call worth its while.
constexpr int64_t kBufferBytes = int64_t{1} << 20;
// Rows this close are read together with what lies between: a call costs about as much as copying that.
constexpr int64_t kGapBytes = int64_t{4} << 10;

// One row where rows follow each other in the tensor and in memory.
StateBlock merged(StateBlock piece) {
  const bool dense = piece.index_stride == piece.columns && piece.stride == piece.columns;
  if (piece.rows > 1 && dense) {
    piece.columns *= piece.rows;
    piece.rows = 1;
  }
  return piece;
}

}  // namespace

void check_block(const StateBlock& piece, int64_t elements) {
  bool good = piece.rows >= 0 && piece.columns >= 0 && piece.index >= 0;
  if (good && (piece.rows == 0 || piece.columns == 0)) return;
  int64_t end = 0;
  int64_t span = 0;
  if (piece.rows > 1) {
    good = good && piece.index_stride >= piece.columns && piece.stride >= piece.columns &&
           !__builtin_mul_overflow(piece.rows - 1, piece.index_stride, &end) &&
           !__builtin_mul_overflow(piece.rows - 1, piece.stride, &span);
  }
  good = good && !__builtin_add_overflow(end, piece.columns, &end) && !__builtin_add_overflow(end, piece.index, &end) &&
         end <= elements && piece.data != nullptr;
  if (!good) {
    base::fail("{} x {} elements from {}, {} apart (in memory {}, {}), are not a piece of {} elements", piece.rows,
               piece.columns, piece.index, piece.index_stride, piece.data == nullptr ? "nowhere" : "there",
               piece.stride, elements);
  }
}

BlockWriter::BlockWriter(const base::File& file)
    : file_(file), buffer_(std::make_unique_for_overwrite<std::byte[]>(kBufferBytes)) {}

uint64_t BlockWriter::write(const TensorPlace& place, const StateBlock& strided) {
  const StateBlock piece = merged(strided);
  const int64_t most = kBufferBytes / place.width;
  uint64_t sum = 0;
  if (piece.device != nullptr) {
    const auto copy = std::make_unique_for_overwrite<std::byte[]>(kBufferBytes);
    for_each_part(piece, place.width, most, [&](const StateBlock& part) {
      part.device->read(copy.get(), part.data, host_rows(part, place.width));
      sum += write(place, on_host(part, copy.get()));
    });
    return sum;
  }
  for (int64_t row = 0; row < piece.rows; ++row) {
    for (int64_t column = 0; column < piece.columns; column += most) {
      const int64_t count = std::min(most, piece.columns - column);
      const int64_t index = piece.index + row * piece.index_stride + column;
      const std::byte* const data = piece.data + (row * piece.stride + column) * place.width;
      sum += checksum(data, count, index, place.width);
      append(place.offset + index * place.width, data, count * place.width);
    }
  }
  return sum;
}

void BlockWriter::append(int64_t offset, const std::byte* data, int64_t bytes) {
  if (offset != begin_ + held_ || held_ + bytes > kBufferBytes) flush();
  if (bytes == kBufferBytes) {
    file_.write_at(offset, data, bytes);
    return;
  }
  if (held_ == 0) begin_ = offset;
  std::memcpy(buffer_.get() + held_, data, static_cast<size_t>(bytes));
  held_ += bytes;
}

void BlockWriter::flush() {
  file_.write_at(begin_, buffer_.get(), held_);
  held_ = 0;
}

BlockReader::BlockReader(const base::File& file, Reading reading)
    : file_(file), reading_(reading), buffer_(std::make_unique_for_overwrite<std::byte[]>(kBufferBytes)) {}

uint64_t BlockReader::read(const TensorPlace& place, const StateBlock& strided) {
  const StateBlock piece = merged(strided);
  const int64_t most = kBufferBytes / place.width;  // elements that fit
  uint64_t sum = 0;
  if (piece.device != nullptr && reading_ == Reading::kFill) {
    const auto copy = std::make_unique_for_overwrite<std::byte[]>(kBufferBytes);
    for_each_part(piece, place.width, most, [&](const StateBlock& part) {
      sum += read(place, on_host(part, copy.get()));
      part.device->write(part.data, copy.get(), host_rows(part, place.width));
    });
    return sum;
  }
  const auto take = [&](int64_t row, int64_t column, int64_t count, const std::byte* from) {
    sum += checksum(from, count, piece.index + row * piece.index_stride + column, place.width);
    if (reading_ == Reading::kVerify) return;
    std::memcpy(piece.data + (row * piece.stride + column) * place.width, from,
                static_cast<size_t>(count * place.width));
  };
  for (int64_t row = 0; row < piece.rows;) {
    const int64_t index = piece.index + row * piece.index_stride;
    int64_t rows = 1;
    if (piece.columns <= most && piece.rows > 1 && piece.index_stride - piece.columns <= kGapBytes / place.width) {
      rows = std::min(piece.rows - row, (most - piece.columns) / piece.index_stride + 1);
      const int64_t span = (rows - 1) * piece.index_stride + piece.columns;
      file_.read_at(place.offset + index * place.width, buffer_.get(), span * place.width);
      for (int64_t i = 0; i < rows; ++i) {
        take(row + i, 0, piece.columns, buffer_.get() + i * piece.index_stride * place.width);
      }
    } else {
      for (int64_t column = 0; column < piece.columns; column += most) {
        const int64_t count = std::min(most, piece.columns - column);
        file_.read_at(place.offset + (index + column) * place.width, buffer_.get(), count * place.width);
        take(row, column, count, buffer_.get());
      }
    }
    row += rows;
  }
  return sum;
}

}  // namespace muster::engine
