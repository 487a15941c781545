// Problems from presets, JSON model files and safetensors headers.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "muster/problem.h"

namespace muster {

struct ModelOptions {
  std::string mesh;    // "fsdp=8,tp=2"; the first axis varies slowest. Empty: the meshes of the file
  std::string rules;   // path of a rules file; required for safetensors, otherwise laid over the model
  int32_t layers = 0;  // keep the first this many layers; 0: all
  std::vector<std::pair<std::string, int64_t>> set;  // model variables, such as {"experts", 60}
};

// `model` is the name of a preset, or the path of a JSON model file, of a .safetensors file or of a
// .safetensors.index.json (only headers are read). The result is validated. Throws InvalidArgument.
Problem load_model(const std::string& model, const ModelOptions& options);

struct Preset {
  std::string name;
  std::string source;  // where its shapes come from
};
std::vector<Preset> presets();

}  // namespace muster
