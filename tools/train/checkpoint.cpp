#include "train/checkpoint.h"

#include <charconv>
#include <cstdio>
#include <filesystem>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "engine/step/fail_together.h"
#include "model/file.h"
#include "muster/error.h"

namespace muster::train {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

constexpr const char* kFile = "train.json";
constexpr const char* kTemporary = "train.json.tmp";
constexpr int kVersion = 1;
constexpr const char* kStates[] = {"state-a", "state-b"};

std::string in(const std::string& directory, std::string_view name) { return (fs::path(directory) / name).string(); }

std::string to_text(const Position& position) {
  Json recipe = Json::object();
  for (const RecipeField& field : recipe_fields()) recipe[std::string(field.name)] = field.get(position.recipe);
  const Json json = {{"format", "muster train"},    {"version", kVersion},
                     {"state", position.state},     {"text", fmt::format("{:016x}", position.text)},
                     {"recipe", std::move(recipe)}, {"losses", position.losses}};
  return json.dump(1) + "\n";
}

Position from_json(const Json& json) {
  if (json.at("format") != "muster train" || json.at("version") != kVersion) {
    throw InvalidArgument(fmt::format("not of version {} of this format", kVersion));
  }
  Position position;
  position.state = json.at("state").get<std::string>();
  if (position.state != kStates[0] && position.state != kStates[1]) throw InvalidArgument("state: no folder of ours");
  const auto text = json.at("text").get<std::string>();
  std::from_chars(text.data(), text.data() + text.size(), position.text, 16);
  position.losses = json.at("losses").get<std::vector<double>>();
  for (const RecipeField& field : recipe_fields()) {
    try {
      field.set(position.recipe, json.at("recipe").at(std::string(field.name)).get<std::string>());
    } catch (const InvalidArgument& error) {
      throw InvalidArgument(fmt::format("{}: {}", field.name, error.what()));
    }
  }
  return position;
}

// The folder that the file does not name.
std::string free_state(const std::string& directory) {
  if (!fs::exists(in(directory, kFile))) return kStates[0];
  return read_position(directory).state == kStates[0] ? kStates[1] : kStates[0];
}

void commit(const std::string& directory, const Position& position) {
  const std::string temporary = in(directory, kTemporary);
  const std::string text = to_text(position);
  fs::remove(temporary);
  base::File file = base::File::create(temporary);
  file.write_at(0, text.data(), std::ssize(text));
  file.finish();
  if (std::rename(temporary.c_str(), in(directory, kFile).c_str()) != 0) base::fail_system("write", directory);
  base::sync_directory(directory);
  for (const char* const state : kStates) {
    std::error_code ignored;  // what cannot be removed is in nobody's way
    if (state != position.state) fs::remove_all(in(directory, state), ignored);
  }
}

}  // namespace

Position read_position(const std::string& directory) {
  const std::string path = in(directory, kFile);
  const std::string text = model::read_file(path);
  try {
    return from_json(Json::parse(text));
  } catch (const Json::exception& error) {
    throw InvalidArgument(fmt::format("{}: {}", base::path_text(path), error.what()));
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(fmt::format("{}: {}", base::path_text(path), error.what()));
  }
}

void make_folder(const std::string& directory, Communicator& communicator) {
  engine::fail_together(communicator, "make checkpoint folder", [&] {
    if (communicator.rank() != 0) return;
    std::error_code error;
    fs::create_directories(directory, error);
    if (error) {
      throw InvalidArgument(fmt::format("--save: cannot create {}: {}", base::path_text(directory), error.message()));
    }
    // Better now than when there is something to lose.
    try {
      free_state(directory);
      const std::string probe = in(directory, kTemporary);
      fs::remove(probe);
      base::File::create(probe);
      fs::remove(probe);
    } catch (const std::exception& broken) {
      throw InvalidArgument(fmt::format("--save: {}", broken.what()));
    }
  });
}

void save(const std::string& directory, Position position, Trainer& trainer, Communicator& communicator) {
  int32_t choice = 0;
  engine::fail_together(communicator, "choose checkpoint folder", [&] {
    if (communicator.rank() == 0) choice = free_state(directory) == kStates[0] ? 0 : 1;
  });
  communicator.broadcast(&choice, sizeof choice, 0, "checkpoint folder")->wait();
  position.state = kStates[choice];
  trainer.save(in(directory, position.state));
  engine::fail_together(communicator, "finish checkpoint", [&] {
    if (communicator.rank() == 0) commit(directory, position);
  });
}

void load(const std::string& directory, const Position& position, Trainer& trainer) {
  trainer.load(in(directory, position.state));
  if (trainer.steps() != std::ssize(position.losses)) {
    throw InvalidArgument(fmt::format("{}: {} losses, but the optimizer made {} steps", base::path_text(directory),
                                      position.losses.size(), trainer.steps()));
  }
}

}  // namespace muster::train
