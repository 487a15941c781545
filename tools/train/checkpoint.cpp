#include "train/checkpoint.h"

#include <charconv>
#include <cstdio>
#include <filesystem>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/json.h"
#include "base/read_file.h"
#include "base/text.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/checkpoint_index.h"
#include "engine/step/fail_together.h"
#include "muster/error.h"

namespace muster::train {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

constexpr const char* kFile = "train.json";
constexpr const char* kTemporary = "train.json.tmp";
constexpr const char* kFormat = "muster train";
constexpr int kVersion = 2;  // since 2: held-out losses, and the fields of a recipe that say so
constexpr const char* kStates[] = {"state-a", "state-b"};

std::string in(const std::string& directory, std::string_view name) { return (fs::path(directory) / name).string(); }

std::string to_text(const Position& position) {
  Json recipe = Json::object();
  for (const RecipeField& field : recipe_fields()) recipe[std::string(field.name)] = field.get(position.recipe);
  Json held_out = Json::array();
  for (const HeldOut& one : position.held_out) held_out.push_back({{"step", one.step}, {"loss", one.loss}});
  const Json json = {{"format", kFormat},
                     {"version", kVersion},
                     {"state", position.state},
                     {"text", fmt::format("{:016x}", position.text)},
                     {"recipe", std::move(recipe)},
                     {"losses", position.losses},
                     {"held_out", std::move(held_out)}};
  return json.dump(1) + "\n";
}

// The folder that the file names; none if there is no file.
std::optional<std::string> used_state(const std::string& directory) {
  if (!fs::exists(in(directory, kFile))) return std::nullopt;
  return read_position(directory).state;
}

// The other one.
std::string free_state(const std::string& directory) {
  return used_state(directory) == kStates[0] ? kStates[1] : kStates[0];
}

// A checkpoint that no train.json names may be someone else's: saving would overwrite it.
void check_states(const std::string& directory) {
  if (used_state(directory)) return;
  for (const char* const state : kStates) {
    const std::string index = in(in(directory, state), engine::kIndexName);
    if (!fs::exists(index)) continue;
    base::fail("{} is there, but no {}: remove {}, or choose another folder", base::path_text(index), kFile, state);
  }
}

// A file of an interrupted save, if there is one.
void remove_old(const std::string& path) {
  std::error_code error;
  fs::remove(path, error);
  if (error) base::fail_system("remove", path, error);
}

void commit(const std::string& directory, const Position& position) {
  const std::optional<std::string> former = used_state(directory);
  const std::string temporary = in(directory, kTemporary);
  const std::string text = to_text(position);
  remove_old(temporary);
  base::File file = base::File::create(temporary);
  file.write_at(0, text.data(), std::ssize(text));
  file.finish();
  if (std::rename(temporary.c_str(), in(directory, kFile).c_str()) != 0) base::fail_system("write", directory);
  base::sync_directory(directory);
  if (former && former != position.state) engine::remove_checkpoint(in(directory, *former));
}

}  // namespace

Position parse_position(std::string_view text, const std::string& where) {
  const base::Json json = base::parse_json(text, where);
  base::Members members(json, where);
  const auto string = [&](std::string_view key) { return base::to_string(members.at(key), where, key); };
  const std::string format = string("format");
  const int64_t version = base::to_integer(members.at("version"), where, "version", 0, base::kMaxInteger);
  if (format != kFormat || version < 1 || version > kVersion) {
    base::fail("{}: {} of version {}; expected '{}' of version 1 to {}", where, base::in_quotes(format), version,
               kFormat, kVersion);
  }
  Position position;
  position.state = string("state");
  if (position.state != kStates[0] && position.state != kStates[1]) {
    base::fail("{}: 'state' is {}, not one of {}, {}", where, base::in_quotes(position.state), kStates[0], kStates[1]);
  }
  const std::string hash = string("text");
  const auto [end, error] = std::from_chars(hash.data(), hash.data() + hash.size(), position.text, 16);
  if (error != std::errc() || end != hash.data() + hash.size()) {
    base::fail("{}: 'text' is {}, not a hash of 16 hexadecimal digits", where, base::in_quotes(hash));
  }
  for (const base::Json& loss : base::to_array(members.at("losses"), where, "losses")) {
    position.losses.push_back(base::to_number(loss, where, "losses"));
  }
  if (version >= 2) {
    for (const base::Json& one : base::to_array(members.at("held_out"), where, "held_out")) {
      base::Members pair(one, where + ": 'held_out'");
      const int64_t step = base::to_integer(pair.at("step"), pair.where(), "step", 0, std::ssize(position.losses));
      position.held_out.push_back({step, base::to_number(pair.at("loss"), pair.where(), "loss")});
      pair.finish();
    }
  }
  base::Members recipe(members.at("recipe"), where + ": 'recipe'");
  for (const RecipeField& field : recipe_fields()) {
    if (field.since > version) continue;
    const std::string value = base::to_string(recipe.at(field.name), recipe.where(), field.name);
    try {
      field.set(position.recipe, value);
    } catch (const InvalidArgument& refusal) {
      base::fail("{}: '{}': {}", recipe.where(), field.name, refusal.what());
    }
  }
  recipe.finish();
  members.finish();
  return position;
}

Position read_position(const std::string& directory) {
  const std::string path = in(directory, kFile);
  return parse_position(base::read_file(path), base::path_text(path));
}

void make_folder(const std::string& directory, Communicator& communicator) {
  engine::fail_together(communicator, "make checkpoint folder", [&] {
    if (communicator.rank() != 0) return;
    try {
      std::error_code error;
      fs::create_directories(directory, error);
      if (error) base::fail_system("create", directory, error);
      // Better now than when there is something to lose.
      check_states(directory);
      const std::string probe = in(directory, kTemporary);
      remove_old(probe);
      base::File::create(probe);
      remove_old(probe);
    } catch (const ResourceError& broken) {
      throw ResourceError(broken.failure().within("--save"));
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
