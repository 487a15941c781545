#include "model/build.h"

#include <algorithm>

#include "base/text.h"
#include "model/placement.h"

namespace muster::model {

namespace {

std::vector<Mesh> choose_meshes(const ModelFile& file, const std::string& option) {
  if (option.empty()) {
    if (file.meshes.empty()) base::fail("model {}: has no mesh; give one with --mesh", base::in_quotes(file.name));
    return file.meshes;
  }
  if (file.meshes.size() > 1) {
    base::fail("--mesh {}: model {} has {} meshes of its own", base::in_quotes(option), base::in_quotes(file.name),
               file.meshes.size());
  }
  Mesh mesh;
  mesh.name = file.meshes.empty() ? "world" : file.meshes.front().name;
  mesh.axes = parse_axes(option, "--mesh");
  return {mesh};
}

int32_t count_ranks(const ModelFile& file, const std::vector<Mesh>& meshes, bool own_meshes) {
  int32_t needed = 0;
  for (const Mesh& mesh : meshes) {
    int32_t positions = 1;
    for (const MeshAxis& axis : mesh.axes) positions *= axis.size;
    const int32_t last = mesh.ranks.empty() ? positions - 1 : *std::max_element(mesh.ranks.begin(), mesh.ranks.end());
    if (own_meshes && file.ranks && last >= *file.ranks) {
      base::fail("model {}: mesh {} holds rank {}, 'ranks' is {}", base::in_quotes(file.name),
                 base::in_quotes(mesh.name), last, *file.ranks);
    }
    needed = std::max(needed, last + 1);
  }
  return own_meshes ? file.ranks.value_or(needed) : needed;
}

Variables set_variables(const ModelFile& file, const BuildOptions& options) {
  Variables variables = file.variables;
  for (const auto& [name, value] : options.set) {
    const auto found = variables.find(name);
    if (found == variables.end()) {
      std::string known;
      for (const auto& [declared, unused] : variables) known += (known.empty() ? "" : ", ") + base::in_quotes(declared);
      base::fail("--set {}: model {} has {}", base::in_quotes(fmt::format("{}={}", name, value)),
                 base::in_quotes(file.name), known.empty() ? "no variables" : "the variables " + known);
    }
    if (value < 1) base::fail("--set {}: must be at least 1", base::in_quotes(fmt::format("{}={}", name, value)));
    found->second = value;
  }
  return variables;
}

int64_t count_elements(const Shape& shape, const std::string& where) {
  int64_t count = 1;
  for (const int64_t dim : shape) {
    if (__builtin_mul_overflow(count, dim, &count)) base::fail("{}: has more than 2^63 - 1 elements", where);
  }
  return count;
}

std::vector<Block> cut_blocks(const Cut& cut, int64_t extent, std::string_view kind, const Variables& variables,
                              const std::string& where) {
  std::vector<Block> blocks;
  if (!cut.heads) {
    for (const Cut::Piece& piece : cut.pieces) {
      blocks.push_back({resolve(piece.size, variables, where), piece.normuon, piece.norm_axis});
    }
    return blocks;
  }
  const int64_t heads = resolve(*cut.heads, variables, where);
  if (heads > base::kMaxHeads) base::fail("{}: {} heads; at most {} are allowed", where, heads, base::kMaxHeads);
  if (extent % heads != 0) base::fail("{}: {} {} do not divide into {} heads", where, extent, kind, heads);
  blocks.assign(static_cast<size_t>(heads), Block{extent / heads, {}, {}});
  return blocks;
}

MatrixSpec resolve_matrices(const Fields& fields, const Shape& shape, const Variables& variables,
                            const std::string& where) {
  MatrixSpec spec;
  for (const Dim& dim : fields.view.value_or(std::vector<Dim>())) spec.view.push_back(resolve(dim, variables, where));
  spec.flatten = fields.flatten.value_or(false);
  const Shape& read = spec.view.empty() ? shape : spec.view;
  const bool cut = fields.rows || fields.columns;
  if (cut && read.size() < 2) base::fail("{}: a tensor with {} dim has no rows and columns to cut", where, read.size());
  if (fields.rows) {
    const int64_t rows = spec.flatten ? read.front() : read[read.size() - 2];
    spec.rows = cut_blocks(*fields.rows, rows, "rows", variables, where);
  }
  if (fields.columns) {
    const int64_t columns = spec.flatten ? count_elements(read, where) / read.front() : read.back();
    spec.columns = cut_blocks(*fields.columns, columns, "columns", variables, where);
  }
  return spec;
}

// What the parameter takes in memory, roughly.
int64_t footprint(const Parameter& parameter) {
  size_t bytes = sizeof(Parameter) + parameter.name.size() + parameter.shape.size() * sizeof(int64_t) +
                 (parameter.matrices.rows.size() + parameter.matrices.columns.size()) * sizeof(Block) +
                 parameter.layout.placements.size() * (sizeof(Placement) + sizeof(int32_t));
  for (const Placement& placement : parameter.layout.placements) bytes += placement.sizes.size() * sizeof(int64_t);
  return static_cast<int64_t>(bytes);
}

class Builder {
 public:
  Builder(const ModelFile& file, const BuildOptions& options) : file_(file), options_(options) {
    problem_.model = file.name;
    problem_.meshes = choose_meshes(file, options.mesh);
    problem_.ranks = count_ranks(file, problem_.meshes, options.mesh.empty());
    problem_.wire = file.wire;
    problem_.grad_sync = file.grad_sync;
    variables_ = set_variables(file, options);
  }

  Problem build() {
    if (options_.layers < 0) base::fail("--layers {}: must be at least 1", options_.layers);
    if (options_.rules) check_rules();
    for (const Entry& entry : file_.entries) {
      Fields fields = file_.defaults;
      fields.overlay(entry.fields);
      if (entry.layers.empty()) {
        count(entry, 1);
        add(entry, entry.name, fields);
      }
      for (Slice slice : entry.layers) {
        if (options_.layers > 0) slice.end = std::min<int64_t>(slice.end, options_.layers);
        if (slice.begin >= slice.end) continue;
        count(entry, (slice.end - slice.begin - 1) / slice.step + 1);
        for (int64_t layer = slice.begin; layer < slice.end; layer += slice.step) {
          add(entry, layer_name(entry.name, layer), fields);
        }
      }
    }
    if (problem_.parameters.empty()) base::fail("model {}: has no parameters", base::in_quotes(file_.name));
    set_groups();
    return std::move(problem_);
  }

 private:
  static std::string layer_name(const std::string& pattern, int64_t layer) {
    const std::string index = fmt::format("{}", layer);
    std::string name;
    size_t begin = 0;
    for (size_t at = 0; (at = pattern.find("{}", begin)) != std::string::npos; begin = at + 2) {
      name.append(pattern, begin, at - begin).append(index);
    }
    return name.append(pattern, begin);
  }

  // Layers that are left out count too: a rule about layer 30 is not wrong because only 4 are kept. A file that names
  // more of them than a model may have is not checked.
  void check_rules() const {
    RuleUse use(*options_.rules);
    int64_t left = options_.limits.parameters;
    for (const Entry& entry : file_.entries) {
      if (entry.layers.empty()) use.see(entry.name);
      for (const Slice& slice : entry.layers) {
        for (int64_t layer = slice.begin; layer < slice.end; layer += slice.step) {
          if (left-- == 0) return;
          use.see(layer_name(entry.name, layer));
        }
      }
    }
    use.check();
  }

  // Before they are made: a short text may ask for billions.
  void count(const Entry& entry, int64_t parameters) {
    seen_ += parameters;
    if (seen_ > options_.limits.parameters) {
      base::fail("parameter {}: brings the model past {} parameters", base::in_quotes(entry.name),
                 options_.limits.parameters);
    }
  }

  void add(const Entry& entry, std::string name, const Fields& fields) {
    const std::string where = "parameter " + base::in_quotes(name);
    base::check_name(name, where, "name");
    const Rule* rule = options_.rules ? options_.rules->find(name) : nullptr;
    if (rule && rule->skip) return;
    if (rule) {
      Fields ruled = fields;
      ruled.overlay(rule->fields);
      place(entry, std::move(name), ruled, where);
    } else {
      place(entry, std::move(name), fields, where);
    }
  }

  void place(const Entry& entry, std::string name, const Fields& fields, const std::string& where) {
    Parameter parameter;
    parameter.name = std::move(name);
    for (const Dim& dim : entry.shape) parameter.shape.push_back(resolve(dim, variables_, where));
    parameter.dtype = fields.dtype.value_or(Dtype::kF32);
    parameter.grad_dtype = fields.grad_dtype.value_or(parameter.dtype);
    const int32_t mesh = find_mesh(fields, where);
    parameter.layout = resolve_layout(fields, parameter.shape, problem_.meshes[static_cast<size_t>(mesh)], where);
    parameter.layout.mesh = mesh;
    parameter.algorithm = fields.algorithm.value_or(Algorithm::kNorMuon);
    parameter.norm_axis = fields.norm_axis.value_or(NormAxis::kLonger);
    // Elementwise algorithms ignore matrices: a rule may send a cut parameter to AdamW.
    if (is_matrix_algorithm(parameter.algorithm)) {
      parameter.matrices = resolve_matrices(fields, parameter.shape, variables_, where);
    }
    parameter.output_dim = fields.output_dim.value_or(0);
    parameter.scale_shape = fields.scale_shape.value_or(ScaleShape::kBlock);
    parameter.multiplier = fields.multiplier.value_or(1);
    bytes_ += footprint(parameter);
    if (bytes_ > options_.limits.parameter_bytes) {
      base::fail("{}: the model's parameters take more than {} MiB", where, options_.limits.parameter_bytes >> 20);
    }
    problem_.parameters.push_back(std::move(parameter));
  }

  int32_t find_mesh(const Fields& fields, const std::string& where) const {
    if (!fields.mesh) return 0;
    for (size_t i = 0; i < problem_.meshes.size(); ++i) {
      if (problem_.meshes[i].name == *fields.mesh) return static_cast<int32_t>(i);
    }
    base::fail("{}: mesh {} is not one of the model's", where, base::in_quotes(*fields.mesh));
  }

  // Group sizes describe the whole model: cut down or ruled differently, it has none.
  void set_groups() {
    const auto matrices = std::count_if(problem_.parameters.begin(), problem_.parameters.end(),
                                        [](const Parameter& p) { return is_matrix_algorithm(p.algorithm); });
    int64_t left = matrices;
    for (const int64_t size : file_.groups) left = size > left ? -1 : left - size;
    if (left == 0) {
      problem_.group_sizes = file_.groups;
    } else if (!file_.groups.empty() && options_.layers == 0 && !options_.rules) {
      base::fail("model {}: 'groups' does not sum to its {} matrix parameters", base::in_quotes(file_.name), matrices);
    }
  }

  const ModelFile& file_;
  const BuildOptions& options_;
  Problem problem_;
  Variables variables_;
  int64_t seen_ = 0;
  int64_t bytes_ = 0;
};

}  // namespace

Problem build_problem(const ModelFile& file, const BuildOptions& options) { return Builder(file, options).build(); }

}  // namespace muster::model
