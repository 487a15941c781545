// A rules file: what is said about parameters by the pattern of their name.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "model/fields.h"

namespace muster::model {

struct Rule {
  std::string match;
  bool skip = false;      // leave the parameter out
  bool optional = false;  // may match nothing
  Fields fields;
};

struct Rules {
  std::string where;  // the file, for messages
  Fields defaults;    // for tensors of safetensors files, which have nothing of their own
  std::vector<Rule> rules;

  // The first that matches, or nullptr.
  const Rule* find(std::string_view name) const;
};

// Finds rules that match nothing, which are misspelt more often than not.
class RuleUse {
 public:
  explicit RuleUse(const Rules& rules);
  void see(std::string_view name);
  // Throws InvalidArgument naming the first rule whose pattern matched no name, unless it is optional.
  void check() const;

 private:
  std::string where_;
  std::vector<const Rule*> unused_;
};

Rules parse_rules(std::string_view text, const std::string& where);

}  // namespace muster::model
