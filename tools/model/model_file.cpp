#include "model/model_file.h"

#include <algorithm>

#include "base/limits.h"
#include "base/text.h"

namespace muster::model {

namespace {

Mesh parse_mesh(const base::Json& json, const std::string& file) {
  base::Members members(json, file + ": a mesh");
  Mesh mesh;
  mesh.name = base::to_string(members.at("name"), members.where(), "name");
  base::check_name(mesh.name, members.where(), "name");
  members.set_where(fmt::format("{}: mesh {}", file, base::in_quotes(mesh.name)));
  const std::string& where = members.where();
  mesh.axes = parse_axes(base::to_string(members.at("axes"), where, "axes"), where);
  if (const base::Json* ranks = members.find("ranks")) {
    for (const base::Json& rank : base::to_array(*ranks, where, "ranks")) {
      mesh.ranks.push_back(static_cast<int32_t>(base::to_integer(rank, where, "ranks", 0, base::kMaxRanks - 1)));
    }
    int64_t positions = 1;
    for (const MeshAxis& axis : mesh.axes) positions *= axis.size;
    if (static_cast<int64_t>(mesh.ranks.size()) != positions) {
      base::fail("{}: 'ranks' lists {} ranks for {} positions", where, mesh.ranks.size(), positions);
    }
  }
  members.finish();
  return mesh;
}

std::vector<Mesh> parse_meshes(const base::Json& json, const std::string& file) {
  std::vector<Mesh> meshes;
  for (const base::Json& mesh : base::to_array(json, file, "meshes")) {
    meshes.push_back(parse_mesh(mesh, file));
    const auto same = [&](const Mesh& other) { return other.name == meshes.back().name; };
    if (std::any_of(meshes.begin(), meshes.end() - 1, same)) {
      base::fail("{}: mesh {} is given twice", file, base::in_quotes(meshes.back().name));
    }
    if (meshes.size() > base::kMaxMeshes) base::fail("{}: more than {} meshes", file, base::kMaxMeshes);
  }
  return meshes;
}

std::vector<Slice> parse_layers(const base::Json& json, const std::string& where) {
  if (!json.is_number()) return parse_slices(base::to_string(json, where, "layers"), where);
  return {{0, base::to_integer(json, where, "layers", 1, INT32_MAX), 1}};
}

Entry parse_entry(const base::Json& json, const std::string& file) {
  base::Members members(json, file + ": a parameter");
  Entry entry;
  entry.name = base::to_string(members.at("name"), members.where(), "name");
  base::check_name(entry.name, members.where(), "name");
  members.set_where(fmt::format("{}: parameter {}", file, base::in_quotes(entry.name)));
  entry.shape = to_dims(members.at("shape"), members.where(), "shape");
  if (entry.shape.empty()) base::fail("{}: 'shape' is []", members.where());
  if (const base::Json* layers = members.find("layers")) entry.layers = parse_layers(*layers, members.where());
  const bool has_index = entry.name.find("{}") != std::string::npos;
  if (has_index != !entry.layers.empty()) {
    base::fail("{}: {}", members.where(),
               has_index ? "'{}' in the name needs 'layers'" : "'layers' needs '{}' in the name");
  }
  entry.fields = parse_fields(members);
  members.finish();
  return entry;
}

Variables parse_variables(const base::Json& json, const std::string& file) {
  const std::string where = file + ": variables";
  if (!json.is_object()) base::fail("{}: must be a JSON object, not {}", where, base::shown(json));
  Variables variables;
  for (const auto& [name, value] : json.items()) {
    base::check_name(name, where, "variable name");
    variables[name] = base::to_integer(value, where, name, 1, base::kMaxInteger);
  }
  return variables;
}

}  // namespace

ModelFile parse_model(std::string_view text, const std::string& where) {
  const base::Json json = base::parse_json(text, where);
  base::Members members(json, where);
  ModelFile file;
  if (const auto name = members.string("name")) {
    base::check_name(*name, where, "name");
    file.name = *name;
  }
  file.source = members.string("source").value_or("");
  if (const base::Json* wire = members.find("wire")) file.wire = to_dtype(*wire, where, "wire");
  file.grad_sync = members.boolean("grad_sync").value_or(false);
  if (const base::Json* groups = members.find("groups")) {
    for (const base::Json& size : base::to_array(*groups, where, "groups")) {
      file.groups.push_back(base::to_integer(size, where, "groups", 1, base::kMaxInteger));
    }
  }
  if (const base::Json* variables = members.find("variables")) file.variables = parse_variables(*variables, where);
  if (const auto ranks = members.integer("ranks", 1, base::kMaxRanks)) file.ranks = static_cast<int32_t>(*ranks);
  if (const base::Json* meshes = members.find("meshes")) file.meshes = parse_meshes(*meshes, where);
  if (const base::Json* defaults = members.find("defaults")) {
    base::Members fields(*defaults, where + ": defaults");
    file.defaults = parse_fields(fields);
    fields.finish();
  }
  const base::Json& parameters = base::to_array(members.at("parameters"), where, "parameters");
  if (static_cast<int64_t>(parameters.size()) > base::Limits().parameters) {
    base::fail("{}: {} parameters; at most {} are allowed", where, parameters.size(), base::Limits().parameters);
  }
  for (const base::Json& parameter : parameters) file.entries.push_back(parse_entry(parameter, where));
  members.finish();
  return file;
}

}  // namespace muster::model
