#include "presets_command.h"

#include <algorithm>

#include <fmt/format.h>

#include "model/model.h"
#include "output.h"

namespace muster::cli {
namespace {

void run() {
  const std::vector<Preset> list = presets();
  size_t width = 0;
  for (const Preset& preset : list) width = std::max(width, preset.name.size());
  std::string text;
  for (const Preset& preset : list) text += fmt::format("{:<{}}  {}\n", preset.name, width, preset.source);
  print(text);
}

}  // namespace

void add_presets_command(CLI::App& app) {
  app.add_subcommand("presets", "List the presets and where their shapes come from")->callback(run);
}

}  // namespace muster::cli
