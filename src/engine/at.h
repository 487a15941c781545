// A place in memory whose type only its width is known of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace muster::engine {

// Null stays null.
template <typename T>
T* at(T* base, int64_t elements, int64_t width) {
  using Byte = std::conditional_t<std::is_const_v<T>, const std::byte, std::byte>;
  return base == nullptr ? nullptr : static_cast<T*>(reinterpret_cast<Byte*>(base) + elements * width);
}

}  // namespace muster::engine
