#include "model/mesh_text.h"

#include <algorithm>

#include "model/limits.h"
#include "model/text.h"

namespace muster::model {

std::vector<MeshAxis> parse_axes(std::string_view text, std::string_view where) {
  std::vector<MeshAxis> axes;
  int64_t ranks = 1;
  for (const std::string_view part : split(text, ',')) {
    const size_t equals = part.find('=');
    if (equals == std::string_view::npos) fail("{}: axis {} is not of the form name=size", where, in_quotes(part));
    const std::string name(part.substr(0, equals));
    check_name(name, where, "axis name");
    if (name.find_first_of(" \t") != std::string::npos) fail("{}: axis name {} has a space", where, in_quotes(name));
    const auto known = [&](const MeshAxis& axis) { return axis.name == name; };
    if (std::any_of(axes.begin(), axes.end(), known)) fail("{}: axis {} is named twice", where, in_quotes(name));
    const std::string_view number = part.substr(equals + 1);
    const std::optional<int64_t> size = parse_integer(number);
    if (!size || *size < 1 || *size > kMaxRanks) {
      fail("{}: axis {} has size {}, not an integer from 1 to {}", where, in_quotes(name), in_quotes(number),
           kMaxRanks);
    }
    ranks *= *size;
    if (ranks > kMaxRanks) fail("{}: {} has more than {} ranks", where, in_quotes(text), kMaxRanks);
    axes.push_back({name, static_cast<int32_t>(*size)});
    if (axes.size() > kMaxAxes) fail("{}: {} has more than {} axes", where, in_quotes(text), kMaxAxes);
  }
  return axes;
}

std::vector<Slice> parse_slices(std::string_view text, std::string_view where) {
  std::vector<Slice> slices;
  for (const std::string_view part : split(text, ',')) {
    const std::vector<std::string_view> numbers = split(part, ':');
    std::vector<int64_t> values;
    for (const std::string_view number : numbers) {
      const std::optional<int64_t> value = parse_integer(number);
      if (!value || *value > INT32_MAX)
        fail("{}: layers {}: {} is not an index", where, in_quotes(text), in_quotes(number));
      values.push_back(*value);
    }
    if (values.size() > 3) fail("{}: layers {}: {} is not begin:end:step", where, in_quotes(text), in_quotes(part));
    const int64_t end = values.size() > 1 ? values[1] : values[0] + 1;
    const int64_t step = values.size() > 2 ? values[2] : 1;
    if (step == 0) fail("{}: layers {}: {} has step 0", where, in_quotes(text), in_quotes(part));
    if (values[0] >= end) fail("{}: layers {}: {} selects nothing", where, in_quotes(text), in_quotes(part));
    slices.push_back({values[0], end, step});
  }
  return slices;
}

}  // namespace muster::model
