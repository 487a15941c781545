#include "model_arguments.h"

#include <limits>

#include <fmt/format.h>

#include "arguments.h"
#include "base/limits.h"
#include "model/model.h"
#include "plan_text/text.h"

namespace muster::cli {

void ModelArguments::add_to(CLI::App& command) {
  command
      .add_option("MODEL", model, "A preset (see `muster presets`), a JSON model file, or a .safetensors file or index")
      ->required()
      ->type_name("");
  command.add_option("--mesh", mesh, "Ranks by axis, the first varying slowest: fsdp=8 or fsdp=16,ep=8")
      ->type_name("AXIS=N,...");
  command.add_option("--ranks", ranks, "Short for --mesh fsdp=N")->type_name("N");
  command.add_option("--rules", rules, "Rules laid over the model; required for safetensors")->type_name("FILE");
  command.add_option("--layers", layers, "Keep the first L layers")->type_name("L");
  command.add_option("--set", set, "Set a variable of the model, such as experts=60; may be repeated")
      ->type_name("NAME=VALUE")
      ->expected(1)
      ->allow_extra_args(false)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

Problem ModelArguments::load() const {
  constexpr int64_t kMaxLayers = std::numeric_limits<int32_t>::max();
  if (!ranks.empty() && !mesh.empty()) {
    throw InvalidArgument(flag_text("--ranks", ranks) + " and " + flag_text("--mesh", mesh) + " exclude each other");
  }
  ModelOptions options;
  options.mesh = mesh;
  options.rules = rules;
  if (!ranks.empty()) options.mesh = "fsdp=" + std::to_string(parse_integer("--ranks", ranks, {1, base::kMaxRanks}));
  if (!layers.empty()) options.layers = static_cast<int32_t>(parse_integer("--layers", layers, {1, kMaxLayers}));
  for (const std::string& setting : set) options.set.push_back(parse_setting("--set", setting));
  return load_model(model, options);
}

std::string ModelArguments::part_words() const {
  std::string words;
  if (!layers.empty()) {
    const int64_t count = parse_integer("--layers", layers, {1});
    words = fmt::format("only the first {} (--layers {})", plan_text::counted_text(count, "layer"), count);
  }
  for (const std::string& setting : set) words += fmt::format("{}--set {}", words.empty() ? "" : " · ", setting);
  return words;
}

}  // namespace muster::cli
