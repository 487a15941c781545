#include "report/columns.h"

#include <gtest/gtest.h>

namespace muster::report {
namespace {

TEST(Columns, AlignTheFirstLeftAndTheRestRight) {
  Columns columns({"name", "µs", "n"});
  columns.add({"a", "12.5", "1"});
  columns.add({"longer", "3×"});  // what is missing is blank
  EXPECT_EQ(columns.text(),
            "  name      µs  n\n"
            "  ───────────────\n"
            "  a       12.5  1\n"
            "  longer    3×\n");
}

TEST(Columns, DimTheHeadsOnRequest) {
  Columns columns({"a", "b"});
  EXPECT_EQ(columns.text(Columns::Colour::kOn), "\x1b[2m  a  b\x1b[0m\n  ────\n");
}

}  // namespace
}  // namespace muster::report
