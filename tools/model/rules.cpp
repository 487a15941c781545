#include "model/rules.h"

#include <algorithm>

#include "base/text.h"

namespace muster::model {

const Rule* Rules::find(std::string_view name) const {
  const auto found = std::find_if(rules.begin(), rules.end(),
                                  [name](const Rule& rule) { return base::glob_matches(rule.match, name); });
  return found == rules.end() ? nullptr : &*found;
}

RuleUse::RuleUse(const Rules& rules) : where_(rules.where) {
  for (const Rule& rule : rules.rules) {
    if (!rule.optional) unused_.push_back(&rule);
  }
}

void RuleUse::see(std::string_view name) {
  std::erase_if(unused_, [name](const Rule* rule) { return base::glob_matches(rule->match, name); });
}

void RuleUse::check() const {
  if (unused_.empty()) return;
  base::fail("{}: rule {}: matches no parameter of the model; \"optional\": true allows that", where_,
             base::in_quotes(unused_.front()->match));
}

Rules parse_rules(std::string_view text, const std::string& where) {
  const base::Json json = base::parse_json(text, where);
  base::Members members(json, where);
  Rules rules;
  rules.where = where;
  if (const base::Json* defaults = members.find("defaults")) {
    base::Members fields(*defaults, where + ": defaults");
    rules.defaults = parse_fields(fields);
    fields.finish();
  }
  for (const base::Json& entry : base::to_array(members.at("rules"), where, "rules")) {
    base::Members fields(entry, where + ": a rule");
    Rule rule;
    rule.match = base::to_string(fields.at("match"), fields.where(), "match");
    base::check_name(rule.match, fields.where(), "match");
    fields.set_where(fmt::format("{}: rule {}", where, base::in_quotes(rule.match)));
    rule.skip = fields.boolean("skip").value_or(false);
    rule.optional = fields.boolean("optional").value_or(false);
    rule.fields = parse_fields(fields);
    fields.finish();
    rules.rules.push_back(std::move(rule));
  }
  members.finish();
  return rules;
}

}  // namespace muster::model
