// Reads untrusted JSON. Every error is one line with the place and the value.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace muster::base {

using Json = nlohmann::json;

inline constexpr int64_t kMaxInteger = INT64_MAX;

// `where` begins every message: a file, or a file and a parameter. Fails on malformed text, duplicate keys, deep
// nesting and absurd sizes.
Json parse_json(std::string_view text, std::string_view where);

// A value for a message: scalars as written, arrays and objects by kind only.
std::string shown(const Json& value);

int64_t to_integer(const Json& value, std::string_view where, std::string_view key, int64_t min, int64_t max);
bool to_bool(const Json& value, std::string_view where, std::string_view key);
double to_number(const Json& value, std::string_view where, std::string_view key);
const std::string& to_string(const Json& value, std::string_view where, std::string_view key);
const Json& to_array(const Json& value, std::string_view where, std::string_view key);

// The members of an object, each read by name. finish() fails on members that were not read.
class Members {
 public:
  Members(const Json& object, std::string where);

  const std::string& where() const { return where_; }
  void set_where(std::string where) { where_ = std::move(where); }

  const Json* find(std::string_view key);
  const Json& at(std::string_view key);  // fails if absent

  std::optional<int64_t> integer(std::string_view key, int64_t min, int64_t max);
  std::optional<bool> boolean(std::string_view key);
  std::optional<std::string> string(std::string_view key);

  void finish() const;

 private:
  const Json& object_;
  std::string where_;
  std::vector<std::string_view> asked_;
};

}  // namespace muster::base
