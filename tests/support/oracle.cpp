#include "support/oracle.h"

#include <algorithm>
#include <numeric>

namespace muster::test {

namespace {

using List = std::vector<int64_t>;

List slice(const List& list, size_t begin, size_t end) {
  begin = std::min(begin, list.size());
  end = std::min(end, list.size());
  return {list.begin() + static_cast<std::ptrdiff_t>(begin), list.begin() + static_cast<std::ptrdiff_t>(end)};
}

// torch.chunk, with empty pieces at the end.
List chunk(const List& list, size_t count, size_t i) {
  const size_t size = (list.size() + count - 1) / count;
  return slice(list, i * size, (i + 1) * size);
}

List piece(const List& list, const Placement& placement, size_t count, size_t i) {
  if (!placement.sizes.empty()) {
    size_t begin = 0;
    for (size_t k = 0; k < i; ++k) begin += static_cast<size_t>(placement.sizes[k]);
    return slice(list, begin, begin + static_cast<size_t>(placement.sizes[i]));
  }
  List out;
  const auto factor = static_cast<size_t>(placement.split_factor);
  for (size_t k = 0; k < factor; ++k) {
    const List part = chunk(chunk(list, factor, k), count, i);
    out.insert(out.end(), part.begin(), part.end());
  }
  return out;
}

}  // namespace

std::vector<int64_t> shard_elements(const Mesh& mesh, const Layout& layout, const Shape& shape, int32_t position) {
  std::vector<size_t> coordinate(mesh.axes.size());
  int32_t rest = position;
  for (size_t a = mesh.axes.size(); a-- > 0;) {
    coordinate[a] = static_cast<size_t>(rest % mesh.axes[a].size);
    rest /= mesh.axes[a].size;
  }
  std::vector<List> indices;
  for (const int64_t dim : shape) {
    indices.emplace_back(static_cast<size_t>(dim));
    std::iota(indices.back().begin(), indices.back().end(), 0);
  }
  std::vector<size_t> order(mesh.axes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  if (!layout.order.empty()) order.assign(layout.order.begin(), layout.order.end());
  for (const size_t a : order) {
    const Placement& p = layout.placements[a];
    if (p.kind != Placement::Kind::kShard) continue;
    indices[p.dim] = piece(indices[p.dim], p, static_cast<size_t>(mesh.axes[a].size), coordinate[a]);
  }
  List flat{0};
  for (size_t d = 0; d < shape.size(); ++d) {
    List next;
    for (const int64_t base : flat) {
      for (const int64_t i : indices[d]) next.push_back(base * shape[d] + i);
    }
    flat = std::move(next);
  }
  for (const size_t a : order) {
    const Placement& p = layout.placements[a];
    if (p.kind == Placement::Kind::kFlat) flat = piece(flat, p, static_cast<size_t>(mesh.axes[a].size), coordinate[a]);
  }
  return flat;
}

std::vector<std::vector<int64_t>> matrix_elements(const Parameter& p) {
  Shape view = p.matrices.view.empty() ? p.shape : p.matrices.view;
  int64_t total = 1;
  for (const int64_t dim : view) total *= dim;
  if (p.matrices.flatten) view = {view[0], total / view[0]};
  const int64_t rows = view[view.size() - 2];
  const int64_t columns = view.back();
  auto blocks = [](const std::vector<Block>& given, int64_t extent) {
    List sizes;
    for (const Block& block : given) sizes.push_back(block.size);
    return sizes.empty() ? List{extent} : sizes;
  };
  std::vector<List> out;
  for (int64_t b = 0; b < total / rows / columns; ++b) {
    int64_t row0 = 0;
    for (const int64_t height : blocks(p.matrices.rows, rows)) {
      int64_t column0 = 0;
      for (const int64_t width : blocks(p.matrices.columns, columns)) {
        List matrix;
        for (int64_t r = row0; r < row0 + height; ++r) {
          for (int64_t c = column0; c < column0 + width; ++c) matrix.push_back((b * rows + r) * columns + c);
        }
        out.push_back(std::move(matrix));
        column0 += width;
      }
      row0 += height;
    }
  }
  return out;
}

}  // namespace muster::test
