// A rules file: what is said about parameters by the pattern of their name.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "model/fields.h"

namespace muster::model {

struct Rule {
  std::string match;
  bool skip = false;  // leave the parameter out
  Fields fields;
};

struct Rules {
  Fields defaults;  // for tensors of safetensors files, which have nothing of their own
  std::vector<Rule> rules;

  // The first that matches, or nullptr.
  const Rule* find(std::string_view name) const;
};

Rules parse_rules(std::string_view text, const std::string& where);

}  // namespace muster::model
