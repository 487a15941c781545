// From a parsed model file to a problem: layers expanded, variables filled in, every parameter placed on its mesh.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/limits.h"
#include "model/model_file.h"
#include "model/rules.h"
#include "muster/problem.h"

namespace muster::model {

struct BuildOptions {
  std::string mesh;    // as ModelOptions
  int32_t layers = 0;  // as ModelOptions
  std::vector<std::pair<std::string, int64_t>> set;
  const Rules* rules = nullptr;
  base::Limits limits;
};

// Not yet validated.
Problem build_problem(const ModelFile& file, const BuildOptions& options);

}  // namespace muster::model
