// A table of text with aligned columns, for a person.
#pragma once

#include <string>
#include <vector>

namespace muster::report {

class Columns {
 public:
  // The first column is aligned left, the others right.
  explicit Columns(std::vector<std::string> heads);

  void add(std::vector<std::string> row);
  enum class Colour { kOff, kOn };
  std::string text(Colour colour = Colour::kOff) const;  // ends with a newline

 private:
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace muster::report
