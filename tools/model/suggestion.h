// The known name that a misspelt one may have meant.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace muster::model {

// "; did you mean 'gpt2-small'?" for the known name that is nearest, by inserted, left out, replaced and swapped
// characters; "" if none differs in at most a third of them.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& known);

}  // namespace muster::model
