// What the fuzzers feed, and what tests/model/corpus_test.cpp and tests/engine/checkpoint_index_test.cpp replay: text
// that nobody vouches for, to a validated problem, an index, or an InvalidArgument of one line. Anything else is a bug.
#pragma once

#include <array>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "engine/checkpoint/checkpoint_index.h"
#include "model/build.h"
#include "model/rules.h"
#include "model/safetensors.h"
#include "muster/error.h"
#include "plan/cost_model/cost_table.h"
#include "sim/cluster.h"
#include "train/checkpoint.h"
#include "train/recipe.h"

namespace muster::fuzz {

template <typename Call>
void run(Call call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    const std::string_view message = error.what();
    if (message.empty() || message.find('\n') != std::string_view::npos) std::abort();
  }
}

// Small, so that a run takes no time; the limits themselves have their own tests.
inline model::BuildOptions options(bool own_meshes) {
  model::BuildOptions options;
  options.limits = {500, 4 << 20};
  if (!own_meshes) options.mesh = "replicate=2,fsdp=3,ep=2,tp=2";
  return options;
}

inline void feed_model(std::string_view text) {
  run([text] {
    const model::ModelFile file = model::parse_model(text, "input");
    validate(model::build_problem(file, options(!file.meshes.empty())));
  });
}

inline void feed_rules(std::string_view text) {
  static const model::ModelFile file = model::parse_model(
      R"({"variables": {"n": 6}, "defaults": {"placements": {"replicate": "replicate", "fsdp": {"shard": 0},
          "ep": "replicate", "tp": "replicate"}}, "parameters": [
          {"name": "a.{}.q", "layers": 3, "shape": [8, 6], "heads": 2}, {"name": "norm", "shape": [5], "algorithm": "adamw"},
          {"name": "a.{}.e", "layers": 2, "shape": ["n", 4, 8], "placements": {"fsdp": [{"shard": 0}, {"shard": 1}]}}]})",
      "model");
  run([text] {
    const model::Rules rules = model::parse_rules(text, "input");
    model::BuildOptions ruled = options(false);
    ruled.rules = &rules;
    run([&] { validate(model::build_problem(file, ruled)); });
    const std::vector<model::Tensor> tensors = {{"a.0.q", "F32", {8, 6}}, {"ids", "I64", {3}}, {"s", "BF16", {}}};
    validate(model::build_problem(model::model_from_tensors(tensors, rules, "tensors"), options(false)));
  });
}

// A file as it is; text that begins with a brace is taken as a header in front of 64 bytes, and as an index.
inline void feed_safetensors(std::string_view input) {
  static const model::Rules rules = model::parse_rules(
      R"({"defaults": {"algorithm": "adamw", "placements": {"replicate": "replicate", "fsdp": {"shard": 0},
          "ep": "flat", "tp": "replicate"}}, "rules": [{"match": "skip*", "skip": true}, {"match": "*"}]})",
      "rules");
  const auto feed = [](std::string_view start, size_t file_bytes) {
    run([&] {
      const auto tensors = model::parse_safetensors(start, static_cast<int64_t>(file_bytes), "input");
      validate(model::build_problem(model::model_from_tensors(tensors, rules, "tensors"), options(false)));
    });
  };
  feed(input, input.size());
  if (!input.starts_with('{')) return;
  std::string start;
  for (int byte = 0; byte < 8; ++byte) start += static_cast<char>(input.size() >> (8 * byte) & 0xff);
  start += input;
  feed(start, start.size() + 64);
  run([input] { model::parse_safetensors_index(input, "input"); });
}

// An index as it is, and behind a checksum that fits it. What can be read is written and read alike.
inline void feed_checkpoint(std::string_view input) {
  run([input] { engine::parse_index(input, "input"); });
  run([input] {
    const std::string text = engine::index_text(engine::parse_index(engine::seal_index(input), "input"));
    if (engine::index_text(engine::parse_index(text, "again")) != text) std::abort();
  });
}

inline void feed_cost_table(std::string_view text) {
  run([text] { plan::parse_cost_table(text, "input"); });
}

inline void feed_cluster(std::string_view text) {
  run([text] { sim::parse_cluster(text, "input", "cpu"); });
}

// The train.json of a training. What can be read has a recipe that can be checked.
inline void feed_training(std::string_view text) {
  run([text] { train::validate(train::parse_position(text, "input").recipe); });
}

// Any reader of JSON: the first byte, a digit, chooses. What `muster tune` writes is a cost table.
inline void feed_json(std::string_view input) {
  constexpr std::array kFeeds{feed_cost_table,  feed_cluster,    feed_training, feed_model,
                              feed_safetensors, feed_checkpoint, feed_rules};
  if (!input.empty()) kFeeds[static_cast<uint8_t>(input[0] - '0') % kFeeds.size()](input.substr(1));
}

}  // namespace muster::fuzz
