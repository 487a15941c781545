#include <algorithm>
#include <filesystem>
#include <optional>
#include <string_view>

#include <fmt/ranges.h>

#include "base/file.h"
#include "base/read_file.h"
#include "base/text.h"
#include "model/build.h"
#include "model/model.h"
#include "model/preset_data.h"
#include "model/safetensors.h"
#include "model/suggestion.h"

namespace muster {

namespace {

using namespace muster::model;

constexpr std::string_view kShardSuffix = ".safetensors";
constexpr std::string_view kIndexSuffix = ".safetensors.index.json";

const PresetText* find_preset(const std::string& name) {
  const auto texts = preset_texts();
  const auto found = std::find_if(texts.begin(), texts.end(), [&](const PresetText& p) { return p.name == name; });
  return found == texts.end() ? nullptr : &*found;
}

std::vector<Tensor> read_safetensors(const std::string& path) {
  const std::string where = base::path_text(path);
  const int64_t bytes = base::file_bytes(path);
  const int64_t header = safetensors_header_bytes(base::read_start(path, std::min<int64_t>(bytes, 8)), bytes, where);
  return parse_safetensors(base::read_start(path, 8 + header), bytes, where);
}

std::vector<Tensor> read_safetensors_index(const std::string& path) {
  std::vector<Tensor> tensors;
  for (const auto& [file, names] : parse_safetensors_index(base::read_file(path), base::path_text(path))) {
    const std::string shard = (std::filesystem::path(path).parent_path() / file).string();
    const std::vector<Tensor> held = read_safetensors(shard);
    for (const std::string& name : names) {  // both in name order
      const auto by_name = [](const Tensor& tensor, const std::string& key) { return tensor.name < key; };
      const auto found = std::lower_bound(held.begin(), held.end(), name, by_name);
      if (found == held.end() || found->name != name)
        base::fail("{}: tensor {} is not in it", base::in_quotes(shard), base::in_quotes(name));
      tensors.push_back(*found);
    }
  }
  std::sort(tensors.begin(), tensors.end(), [](const Tensor& a, const Tensor& b) { return a.name < b.name; });
  return tensors;
}

ModelFile read_tensors(const std::string& path, const ModelOptions& options, const std::optional<Rules>& rules) {
  if (!rules) base::fail("{}: a safetensors file needs --rules to say what its tensors are", base::path_text(path));
  if (options.layers != 0) {
    base::fail("--layers {}: a safetensors file does not say what a layer is; skip tensors by --rules", options.layers);
  }
  const std::vector<Tensor> tensors =
      path.ends_with(kIndexSuffix) ? read_safetensors_index(path) : read_safetensors(path);
  return model_from_tensors(tensors, *rules, std::filesystem::path(path).filename().string());
}

ModelFile read_model(const std::string& model) {
  if (const PresetText* preset = find_preset(model)) return parse_model(preset->json, model);
  std::error_code error;
  if (!std::filesystem::is_regular_file(model, error)) {
    std::vector<std::string> known;
    for (const PresetText& preset : preset_texts()) known.emplace_back(preset.name);
    base::fail("model {}: neither a file nor one of the presets {}{}", base::in_quotes(model), fmt::join(known, ", "),
               did_you_mean(model, known));
  }
  ModelFile file = parse_model(base::read_file(model), base::path_text(model));
  if (file.name.empty()) file.name = std::filesystem::path(model).stem().string();
  return file;
}

}  // namespace

Problem load_model(const std::string& model, const ModelOptions& options) {
  std::optional<Rules> rules;
  if (!options.rules.empty()) rules = parse_rules(base::read_file(options.rules), base::path_text(options.rules));
  BuildOptions build{options.mesh, options.layers, options.set, nullptr, {}};
  Problem problem;
  if (model.ends_with(kShardSuffix) || model.ends_with(kIndexSuffix)) {
    problem = build_problem(read_tensors(model, options, rules), build);
  } else {
    build.rules = rules ? &*rules : nullptr;
    problem = build_problem(read_model(model), build);
  }
  validate(problem);
  return problem;
}

std::vector<Preset> presets() {
  std::vector<Preset> result;
  for (const PresetText& preset : preset_texts()) {
    result.push_back({std::string(preset.name), parse_model(preset.json, std::string(preset.name)).source});
  }
  std::sort(result.begin(), result.end(), [](const Preset& a, const Preset& b) { return a.name < b.name; });
  return result;
}

}  // namespace muster
