#include "base/json.h"

#include <algorithm>
#include <set>

#include "base/limits.h"
#include "base/text.h"

namespace muster::base {

namespace {

// The parser's callback: the parser alone keeps the last of two equal keys and has no limit on nesting.
class Checks {
 public:
  explicit Checks(std::string_view where) : where_(where) {}

  bool operator()(int, Json::parse_event_t event, Json& value) {
    using Event = Json::parse_event_t;
    if (event == Event::object_start || event == Event::array_start) {
      if (keys_.size() == kMaxJsonDepth) fail("{}: nested more than {} deep", where_, kMaxJsonDepth);
      keys_.emplace_back();
    } else if (event == Event::object_end || event == Event::array_end) {
      keys_.pop_back();
    } else if (event == Event::key) {
      const auto [key, is_new] = keys_.back().insert(value.get<std::string>());
      if (!is_new) fail("{}: key {} is given twice", where_, in_quotes(*key));
    }
    if (++values_ > kMaxJsonValues) fail("{}: more than {} JSON values", where_, kMaxJsonValues);
    return true;
  }

 private:
  std::string_view where_;
  std::vector<std::set<std::string>> keys_;
  int64_t values_ = 0;
};

[[noreturn]] void fail_kind(const Json& value, std::string_view where, std::string_view key, std::string_view wanted) {
  fail("{}: {} must be {}, not {}", where, in_quotes(key), wanted, shown(value));
}

}  // namespace

Json parse_json(std::string_view text, std::string_view where) {
  try {
    // By reference: the parser copies its callback.
    Checks checks(where);
    return Json::parse(text, std::ref(checks));
  } catch (const Json::parse_error& error) {
    const std::string_view read = text.substr(0, error.byte > 0 ? error.byte - 1 : 0);
    const auto line = std::count(read.begin(), read.end(), '\n') + 1;
    const size_t newline = read.rfind('\n');
    const size_t column = newline == std::string_view::npos ? read.size() + 1 : read.size() - newline;
    fail("{}: not valid JSON at line {}, column {}", where, line, column);
  } catch (const Json::exception&) {
    fail("{}: not valid JSON (a number out of range)", where);
  }
}

std::string shown(const Json& value) {
  if (value.is_array()) return value.empty() ? "[]" : "an array";
  if (value.is_object()) return "an object";
  if (value.is_string()) return in_quotes(value.get_ref<const std::string&>());
  return value.dump();
}

int64_t to_integer(const Json& value, std::string_view where, std::string_view key, int64_t min, int64_t max) {
  const bool fits = value.is_number_integer() &&
                    !(value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(kMaxInteger));
  if (!fits || value.get<int64_t>() < min || value.get<int64_t>() > max) {
    fail_kind(value, where, key, fmt::format("an integer from {} to {}", min, max));
  }
  return value.get<int64_t>();
}

bool to_bool(const Json& value, std::string_view where, std::string_view key) {
  if (!value.is_boolean()) fail_kind(value, where, key, "true or false");
  return value.get<bool>();
}

double to_number(const Json& value, std::string_view where, std::string_view key) {
  if (!value.is_number()) fail_kind(value, where, key, "a number");
  return value.get<double>();
}

const std::string& to_string(const Json& value, std::string_view where, std::string_view key) {
  if (!value.is_string()) fail_kind(value, where, key, "a string");
  return value.get_ref<const std::string&>();
}

const Json& to_array(const Json& value, std::string_view where, std::string_view key) {
  if (!value.is_array()) fail_kind(value, where, key, "an array");
  return value;
}

Members::Members(const Json& object, std::string where) : object_(object), where_(std::move(where)) {
  if (!object.is_object()) fail("{}: must be a JSON object, not {}", where_, shown(object));
}

const Json* Members::find(std::string_view key) {
  asked_.push_back(key);
  const auto found = object_.find(key);
  return found == object_.end() ? nullptr : &*found;
}

const Json& Members::at(std::string_view key) {
  const Json* value = find(key);
  if (!value) fail("{}: {} is missing", where_, in_quotes(key));
  return *value;
}

std::optional<int64_t> Members::integer(std::string_view key, int64_t min, int64_t max) {
  const Json* value = find(key);
  return value ? std::optional(to_integer(*value, where_, key, min, max)) : std::nullopt;
}

std::optional<bool> Members::boolean(std::string_view key) {
  const Json* value = find(key);
  return value ? std::optional(to_bool(*value, where_, key)) : std::nullopt;
}

std::optional<std::string> Members::string(std::string_view key) {
  const Json* value = find(key);
  return value ? std::optional(to_string(*value, where_, key)) : std::nullopt;
}

void Members::finish() const {
  for (const auto& [key, value] : object_.items()) {
    if (std::find(asked_.begin(), asked_.end(), key) == asked_.end())
      fail("{}: unknown key {}", where_, in_quotes(key));
  }
}

}  // namespace muster::base
