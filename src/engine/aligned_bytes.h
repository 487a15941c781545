// Memory for kernels: on a cache line, and zero.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

namespace muster::engine {

class AlignedBytes {
 public:
  static constexpr int64_t kAlign = 64;

  AlignedBytes() = default;
  explicit AlignedBytes(int64_t bytes) : bytes_((bytes + kAlign - 1) / kAlign * kAlign) {
    if (bytes_ == 0) return;
    data_.reset(static_cast<std::byte*>(std::aligned_alloc(kAlign, static_cast<size_t>(bytes_))));
    if (data_ == nullptr) throw std::bad_alloc();
    std::memset(data_.get(), 0, static_cast<size_t>(bytes_));
  }
  std::byte* data() const { return data_.get(); }
  int64_t size() const { return bytes_; }

 private:
  struct Free {
    void operator()(std::byte* data) const { std::free(data); }
  };
  std::unique_ptr<std::byte, Free> data_;
  int64_t bytes_ = 0;
};

}  // namespace muster::engine
