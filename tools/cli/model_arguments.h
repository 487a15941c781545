// MODEL and the flags that say which model on which ranks; every subcommand that takes a model has them.
#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "muster/problem.h"

namespace muster::cli {

struct ModelArguments {
  std::string model;
  std::string mesh;
  std::string ranks;
  std::string rules;
  std::string layers;
  std::vector<std::string> set;

  void add_to(CLI::App& command);
  // Throws InvalidArgument.
  Problem load() const;
  // Which part of the model that is: "only the first 2 layers (--layers 2)"; empty: all of it, as its file says.
  std::string part_words() const;
};

}  // namespace muster::cli
