#include "presets_command.h"

#include <algorithm>
#include <memory>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "arguments.h"
#include "model/model.h"
#include "output.h"

namespace muster::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string table_text(const std::vector<Preset>& list) {
  size_t width = 0;
  for (const Preset& preset : list) width = std::max(width, preset.name.size());
  std::string text;
  for (const Preset& preset : list) text += fmt::format("{:<{}}  {}\n", preset.name, width, preset.source);
  return text;
}

std::string json_text(const std::vector<Preset>& list) {
  Json presets = Json::array();
  for (const Preset& preset : list) presets.push_back({{"name", preset.name}, {"source", preset.source}});
  return Json{{"presets", std::move(presets)}}.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace

void add_presets_command(CLI::App& app) {
  CLI::App& command = *app.add_subcommand("presets", "List the presets and where their shapes come from");
  const auto json = std::make_shared<bool>(false);
  add_json_flag(command, *json);
  command.callback([json] { print(*json ? json_text(presets()) : table_text(presets())); });
}

}  // namespace muster::cli
