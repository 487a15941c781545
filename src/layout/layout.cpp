#include "muster/layout.h"

#include <fmt/format.h>

#include "base/text.h"

namespace muster {

int64_t element_count(const Shape& shape) {
  int64_t n = 1;
  for (const int64_t dim : shape) {
    if (dim < 0) base::fail("shape [{}] has a negative dim", fmt::join(shape, ","));
    if (__builtin_mul_overflow(n, dim, &n)) {
      base::fail("shape [{}] has more than 2^63 - 1 elements", fmt::join(shape, ","));
    }
  }
  return n;
}

int32_t Mesh::size() const {
  int32_t n = 1;
  for (const MeshAxis& axis : axes) {
    if (axis.size < 1 || __builtin_mul_overflow(n, axis.size, &n)) {
      base::fail("mesh '{}': axis '{}' has size {}", name, axis.name, axis.size);
    }
  }
  return n;
}

int32_t Mesh::coordinate(int32_t position, int axis) const {
  int32_t stride = 1;
  for (size_t a = axes.size(); a-- > static_cast<size_t>(axis) + 1;) stride *= axes[a].size;
  return position / stride % axes[axis].size;
}

}  // namespace muster
