// Pieces of tensors to and from their places in a file, with the checksum of what passes. Memory is one buffer,
// whatever the size of the pieces.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/file.h"
#include "engine/state/state_shard.h"

namespace muster::engine {

// Where a tensor lies.
struct TensorPlace {
  int64_t offset = 0;  // bytes from the start of the file
  int64_t width = 4;   // bytes of an element
};

// Fails unless the piece lies in a tensor of so many elements and its rows do not overlap.
void check_block(const StateBlock& piece, int64_t elements);

// Gathers rows that are neighbours in the file, and writes long ones straight from their memory.
class BlockWriter {
 public:
  explicit BlockWriter(const base::File& file);
  uint64_t write(const TensorPlace& place, const StateBlock& piece);  // its checksum
  void flush();

 private:
  void append(int64_t offset, const std::byte* data, int64_t bytes);

  const base::File& file_;
  std::unique_ptr<std::byte[]> buffer_;
  int64_t begin_ = 0;  // of what is buffered, in the file
  int64_t held_ = 0;
};

enum class Reading : uint8_t {
  kVerify,  // changes nothing
  kFill,    // writes to the piece's memory
};

class BlockReader {
 public:
  BlockReader(const base::File& file, Reading reading);
  uint64_t read(const TensorPlace& place, const StateBlock& piece);  // its checksum

 private:
  const base::File& file_;
  Reading reading_;
  std::unique_ptr<std::byte[]> buffer_;
};

}  // namespace muster::engine
