// Pointer arithmetic on untyped memory, given the element size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace muster::base {

// The address of element number `elements`, each of `width` bytes. Null stays null.
template <typename T>
T* offset_by(T* base, int64_t elements, int64_t width) {
  using Byte = std::conditional_t<std::is_const_v<T>, const std::byte, std::byte>;
  return base == nullptr ? nullptr : static_cast<T*>(reinterpret_cast<Byte*>(base) + elements * width);
}

}  // namespace muster::base
