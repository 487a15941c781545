// What the model tests share: files in a folder of their own, and the message of an error.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "model/build.h"
#include "model/model.h"
#include "muster/error.h"

namespace muster::model {

class TempFolder {
 public:
  TempFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "muster_model_XXXXXX").string();
    if (!mkdtemp(pattern.data())) throw std::runtime_error("no temporary folder");
    path_ = pattern;
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  std::string write(const std::string& name, std::string_view text) const {
    const std::string path = (path_ / name).string();
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }
  std::string path(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

inline Problem build(std::string_view text, const BuildOptions& options = {}) {
  Problem problem = build_problem(parse_model(text, "test.json"), options);
  validate(problem);
  return problem;
}

// The message of the InvalidArgument that `call` throws; empty if it throws nothing.
template <typename Call>
std::string error_of(Call call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return {};
}

inline void expect_error(const std::string& error, const std::vector<std::string>& parts) {
  EXPECT_FALSE(error.empty()) << "nothing was thrown";
  EXPECT_EQ(error.find('\n'), std::string::npos) << error;
  for (const std::string& part : parts)
    EXPECT_NE(error.find(part), std::string::npos) << part << " is not in: " << error;
}

inline const Parameter& find(const Problem& problem, const std::string& name) {
  for (const Parameter& parameter : problem.parameters) {
    if (parameter.name == name) return parameter;
  }
  throw std::runtime_error("no parameter " + name);
}

inline std::string source_path(const std::string& path) { return std::string(MUSTER_SOURCE_DIR) + "/" + path; }

}  // namespace muster::model
