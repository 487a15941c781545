// The JSON of a cost table.
#pragma once

#include <string>
#include <string_view>

#include "muster/cost.h"

namespace muster::plan {

// Fails with `where`, the key and its value unless the text is a table as `muster tune` writes it.
CostTable parse_cost_table(std::string_view text, const std::string& where);

}  // namespace muster::plan
