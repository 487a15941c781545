// What a file says about a parameter besides its name and shape. Defaults, parameters and rules share it: every field
// may be absent, and one set of fields is laid over another.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "muster/problem.h"

namespace muster::model {

// A number, or the name of a variable that holds it.
struct Dim {
  int64_t value = 0;
  std::string variable;
};

using Variables = std::map<std::string, int64_t>;
int64_t resolve(const Dim& dim, const Variables& variables, std::string_view where);

// Rows or columns cut into equal heads, or into blocks (none: not cut).
struct Cut {
  struct Piece {
    Dim size;
    std::optional<bool> normuon;
    std::optional<NormAxis> norm_axis;
  };
  std::optional<Dim> heads;
  std::vector<Piece> pieces;
};

struct Fields {
  std::optional<Dtype> dtype;
  std::optional<Dtype> grad_dtype;
  std::optional<std::string> mesh;
  // For each axis the alternatives, the first that fits is taken; a plain placement is the only one.
  std::map<std::string, std::vector<Placement>> placements;
  std::optional<std::vector<std::string>> order;
  std::optional<Algorithm> algorithm;
  std::optional<NormAxis> norm_axis;
  std::optional<Cut> rows;
  std::optional<Cut> columns;
  std::optional<std::vector<Dim>> view;
  std::optional<bool> flatten;
  std::optional<int> output_dim;
  std::optional<ScaleShape> scale_shape;
  std::optional<double> multiplier;

  // What `other` says wins; placements are merged axis by axis.
  void overlay(const Fields& other);
};

// Takes its keys from `members` and leaves the others to the caller.
Fields parse_fields(base::Members& members);

Dtype to_dtype(const base::Json& value, std::string_view where, std::string_view key);
// 1 to kMaxDims dims for a shape; a view may be empty.
std::vector<Dim> to_dims(const base::Json& value, std::string_view where, std::string_view key);

}  // namespace muster::model
