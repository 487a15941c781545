// A model file as written: parsed, not yet expanded or placed on a mesh.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/fields.h"
#include "model/mesh_text.h"
#include "muster/problem.h"

namespace muster::model {

struct Entry {
  std::string name;  // with "{}" for the layer where there are layers
  std::vector<Dim> shape;
  std::vector<Slice> layers;  // empty: one parameter
  Fields fields;
};

struct ModelFile {
  std::string name;  // empty: the file does not say
  std::string source;
  Dtype wire = Dtype::kBf16;
  bool grad_sync = false;
  std::vector<int64_t> groups;
  Variables variables;
  std::optional<int32_t> ranks;
  std::vector<Mesh> meshes;
  Fields defaults;
  std::vector<Entry> entries;
};

// `where` opens every message: the name of the file.
ModelFile parse_model(std::string_view text, const std::string& where);

}  // namespace muster::model
