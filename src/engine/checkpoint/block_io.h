// Blocks of tensors to and from their places in a file, with their checksums. Memory is one buffer per object, whatever
// the size of the blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/file.h"
#include "engine/state/state_shard.h"

namespace muster::engine {

struct TensorPlace {
  int64_t offset = 0;               // bytes from the start of the file
  int64_t width = 4;                // bytes of an element
  const StateInfo* info = nullptr;  // of the tensor; null: any values will do
};

// Fails unless the block lies in a tensor of `elements` elements and its rows do not intersect.
void check_block(const StateBlock& block, int64_t elements);

// Collects rows that are adjacent in the file, and writes long rows straight from their memory.
class BlockWriter {
 public:
  explicit BlockWriter(const base::File& file);
  uint64_t write(const TensorPlace& place, const StateBlock& block);  // its checksum
  void flush();                                                       // after the last block

 private:
  void append(int64_t offset, const std::byte* data, int64_t bytes);

  const base::File& file_;
  std::unique_ptr<std::byte[]> buffer_;
  int64_t begin_ = 0;     // of the buffered bytes, in the file
  int64_t buffered_ = 0;  // bytes
};

enum class ReadMode : uint8_t {
  kVerify,  // computes checksums, and looks for values that the state may not have
  kFill,    // also writes to the block's memory
};

class BlockReader {
 public:
  BlockReader(const base::File& file, ReadMode mode);
  uint64_t read(const TensorPlace& place, const StateBlock& block);  // its checksum
  // Tensor and value of the first that the state may not have; empty if there was none.
  const std::string& refused() const { return refused_; }

 private:
  const base::File& file_;
  const ReadMode mode_;
  std::string refused_;
  std::unique_ptr<std::byte[]> buffer_;
};

}  // namespace muster::engine
