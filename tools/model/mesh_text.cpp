#include "model/mesh_text.h"

#include <algorithm>

#include "base/limits.h"
#include "base/text.h"

namespace muster::model {

std::vector<MeshAxis> parse_axes(std::string_view text, std::string_view where) {
  std::vector<MeshAxis> axes;
  int64_t ranks = 1;
  for (const std::string_view part : base::split(text, ',')) {
    const size_t equals = part.find('=');
    if (equals == std::string_view::npos)
      base::fail("{}: axis {} is not of the form name=size", where, base::in_quotes(part));
    const std::string name(part.substr(0, equals));
    base::check_name(name, where, "axis name");
    if (name.find_first_of(" \t") != std::string::npos)
      base::fail("{}: axis name {} has a space", where, base::in_quotes(name));
    const auto known = [&](const MeshAxis& axis) { return axis.name == name; };
    if (std::any_of(axes.begin(), axes.end(), known))
      base::fail("{}: axis {} is named twice", where, base::in_quotes(name));
    const std::string_view number = part.substr(equals + 1);
    const std::optional<int64_t> size = base::parse_integer(number);
    if (!size || *size < 1 || *size > base::kMaxRanks) {
      base::fail("{}: axis {} has size {}, not an integer from 1 to {}", where, base::in_quotes(name),
                 base::in_quotes(number), base::kMaxRanks);
    }
    ranks *= *size;
    if (ranks > base::kMaxRanks)
      base::fail("{}: {} has more than {} ranks", where, base::in_quotes(text), base::kMaxRanks);
    axes.push_back({name, static_cast<int32_t>(*size)});
    if (axes.size() > base::kMaxAxes)
      base::fail("{}: {} has more than {} axes", where, base::in_quotes(text), base::kMaxAxes);
  }
  return axes;
}

std::vector<Slice> parse_slices(std::string_view text, std::string_view where) {
  std::vector<Slice> slices;
  for (const std::string_view part : base::split(text, ',')) {
    const std::vector<std::string_view> numbers = base::split(part, ':');
    std::vector<int64_t> values;
    for (const std::string_view number : numbers) {
      const std::optional<int64_t> value = base::parse_integer(number);
      if (!value || *value > INT32_MAX)
        base::fail("{}: layers {}: {} is not an index", where, base::in_quotes(text), base::in_quotes(number));
      values.push_back(*value);
    }
    if (values.size() > 3)
      base::fail("{}: layers {}: {} is not begin:end:step", where, base::in_quotes(text), base::in_quotes(part));
    const int64_t end = values.size() > 1 ? values[1] : values[0] + 1;
    const int64_t step = values.size() > 2 ? values[2] : 1;
    if (step == 0) base::fail("{}: layers {}: {} has step 0", where, base::in_quotes(text), base::in_quotes(part));
    if (values[0] >= end)
      base::fail("{}: layers {}: {} selects nothing", where, base::in_quotes(text), base::in_quotes(part));
    slices.push_back({values[0], end, step});
  }
  return slices;
}

}  // namespace muster::model
