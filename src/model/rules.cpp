#include "model/rules.h"

#include <algorithm>

#include "model/text.h"

namespace muster::model {

const Rule* Rules::find(std::string_view name) const {
  const auto found =
      std::find_if(rules.begin(), rules.end(), [name](const Rule& rule) { return glob_matches(rule.match, name); });
  return found == rules.end() ? nullptr : &*found;
}

Rules parse_rules(std::string_view text, const std::string& where) {
  const Json json = parse_json(text, where);
  Members members(json, where);
  Rules rules;
  if (const Json* defaults = members.find("defaults")) {
    Members fields(*defaults, where + ": defaults");
    rules.defaults = parse_fields(fields);
    fields.finish();
  }
  for (const Json& entry : to_array(members.at("rules"), where, "rules")) {
    Members fields(entry, where + ": a rule");
    Rule rule;
    rule.match = to_string(fields.at("match"), fields.where(), "match");
    check_name(rule.match, fields.where(), "match");
    fields.set_where(fmt::format("{}: rule {}", where, in_quotes(rule.match)));
    rule.skip = fields.boolean("skip").value_or(false);
    rule.fields = parse_fields(fields);
    fields.finish();
    rules.rules.push_back(std::move(rule));
  }
  members.finish();
  return rules;
}

}  // namespace muster::model
