// What the words of a report mean: strategies and figures, each in a sentence or two.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "muster/plan.h"
#include "report/page.h"

namespace muster::report {

struct Term {
  std::string key;   // of a figure, or the name of a strategy
  std::string name;  // as the page shows it
  std::string text;
};

std::string_view strategy_words(Strategy strategy);
std::string_view figure_words(std::string_view key);  // empty if the label says it all

// The strategies and figures that the page shows, each once, in the order of the page.
std::vector<Term> terms_of(const Page& page);

}  // namespace muster::report
