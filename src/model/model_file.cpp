#include "model/model_file.h"

#include <algorithm>

#include "model/limits.h"
#include "model/text.h"

namespace muster::model {

namespace {

Mesh parse_mesh(const Json& json, const std::string& file) {
  Members members(json, file + ": a mesh");
  Mesh mesh;
  mesh.name = to_string(members.at("name"), members.where(), "name");
  check_name(mesh.name, members.where(), "name");
  members.set_where(fmt::format("{}: mesh {}", file, in_quotes(mesh.name)));
  const std::string& where = members.where();
  mesh.axes = parse_axes(to_string(members.at("axes"), where, "axes"), where);
  if (const Json* ranks = members.find("ranks")) {
    for (const Json& rank : to_array(*ranks, where, "ranks")) {
      mesh.ranks.push_back(static_cast<int32_t>(to_integer(rank, where, "ranks", 0, kMaxRanks - 1)));
    }
    int64_t positions = 1;
    for (const MeshAxis& axis : mesh.axes) positions *= axis.size;
    if (static_cast<int64_t>(mesh.ranks.size()) != positions) {
      fail("{}: 'ranks' lists {} ranks for {} positions", where, mesh.ranks.size(), positions);
    }
  }
  members.finish();
  return mesh;
}

std::vector<Mesh> parse_meshes(const Json& json, const std::string& file) {
  std::vector<Mesh> meshes;
  for (const Json& mesh : to_array(json, file, "meshes")) {
    meshes.push_back(parse_mesh(mesh, file));
    const auto same = [&](const Mesh& other) { return other.name == meshes.back().name; };
    if (std::any_of(meshes.begin(), meshes.end() - 1, same)) {
      fail("{}: mesh {} is given twice", file, in_quotes(meshes.back().name));
    }
    if (meshes.size() > kMaxMeshes) fail("{}: more than {} meshes", file, kMaxMeshes);
  }
  return meshes;
}

std::vector<Slice> parse_layers(const Json& json, const std::string& where) {
  if (!json.is_number()) return parse_slices(to_string(json, where, "layers"), where);
  return {{0, to_integer(json, where, "layers", 1, INT32_MAX), 1}};
}

Entry parse_entry(const Json& json, const std::string& file) {
  Members members(json, file + ": a parameter");
  Entry entry;
  entry.name = to_string(members.at("name"), members.where(), "name");
  check_name(entry.name, members.where(), "name");
  members.set_where(fmt::format("{}: parameter {}", file, in_quotes(entry.name)));
  entry.shape = to_dims(members.at("shape"), members.where(), "shape");
  if (entry.shape.empty()) fail("{}: 'shape' is []", members.where());
  if (const Json* layers = members.find("layers")) entry.layers = parse_layers(*layers, members.where());
  const bool has_index = entry.name.find("{}") != std::string::npos;
  if (has_index != !entry.layers.empty()) {
    fail("{}: {}", members.where(), has_index ? "'{}' in the name needs 'layers'" : "'layers' needs '{}' in the name");
  }
  entry.fields = parse_fields(members);
  members.finish();
  return entry;
}

Variables parse_variables(const Json& json, const std::string& file) {
  const std::string where = file + ": variables";
  if (!json.is_object()) fail("{}: must be a JSON object, not {}", where, shown(json));
  Variables variables;
  for (const auto& [name, value] : json.items()) {
    check_name(name, where, "variable name");
    variables[name] = to_integer(value, where, name, 1, kMaxInteger);
  }
  return variables;
}

}  // namespace

ModelFile parse_model(std::string_view text, const std::string& where) {
  const Json json = parse_json(text, where);
  Members members(json, where);
  ModelFile file;
  if (const auto name = members.string("name")) {
    check_name(*name, where, "name");
    file.name = *name;
  }
  file.source = members.string("source").value_or("");
  if (const Json* wire = members.find("wire")) file.wire = to_dtype(*wire, where, "wire");
  file.grad_sync = members.boolean("grad_sync").value_or(false);
  if (const Json* groups = members.find("groups")) {
    for (const Json& size : to_array(*groups, where, "groups")) {
      file.groups.push_back(to_integer(size, where, "groups", 1, kMaxInteger));
    }
  }
  if (const Json* variables = members.find("variables")) file.variables = parse_variables(*variables, where);
  if (const auto ranks = members.integer("ranks", 1, kMaxRanks)) file.ranks = static_cast<int32_t>(*ranks);
  if (const Json* meshes = members.find("meshes")) file.meshes = parse_meshes(*meshes, where);
  if (const Json* defaults = members.find("defaults")) {
    Members fields(*defaults, where + ": defaults");
    file.defaults = parse_fields(fields);
    fields.finish();
  }
  const Json& parameters = to_array(members.at("parameters"), where, "parameters");
  if (static_cast<int64_t>(parameters.size()) > Limits().parameters) {
    fail("{}: {} parameters; at most {} are allowed", where, parameters.size(), Limits().parameters);
  }
  for (const Json& parameter : parameters) file.entries.push_back(parse_entry(parameter, where));
  members.finish();
  return file;
}

}  // namespace muster::model
