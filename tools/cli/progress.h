// A bar on standard error while something takes long; nothing where that is not a terminal.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

namespace muster::cli {

class Progress {
 public:
  enum class Show { kIfTerminal, kNever };
  explicit Progress(Show show = Show::kIfTerminal);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress();  // wipes it

  // A share from 0 to 1, and what is being done.
  void update(double done, std::string_view what);
  void clear();

 private:
  bool shows_ = false;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point start_;
  std::string last_;
};

}  // namespace muster::cli
