#include "verify_page.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "plan_text/text.h"

namespace muster::cli {
namespace {

using report::Comparison;
using report::Figure;
using report::Source;

bool equal(const VerifiedCase& c) { return c.difference.empty(); }
bool close(const VerifiedReference& r) { return r.result.share() <= 1; }

std::string counted(int64_t count, std::string_view one, std::string_view many) {
  return fmt::format("{} {}", plan_text::grouped_text(count), count == 1 ? one : many);
}

Figure error_figure(const ReferenceCheck::Result& r) {
  return Figure::number("error", "error, of the update", r.max_error).from(Source::kMeasured);
}

std::vector<std::string> findings(const Verified& verified) {
  std::vector<std::string> out;
  const int64_t cases = std::ssize(verified.cases);
  const int64_t same = std::ranges::count_if(verified.cases, equal);
  if (same == cases) {
    out.push_back(
        fmt::format("All {} give the same weights as one rank, bit for bit.", counted(cases, "case", "cases")));
  } else {
    out.push_back(
        fmt::format("{} of {} give other weights than one rank.", cases - same, counted(cases, "case", "cases")));
    for (const VerifiedCase& c : verified.cases) {
      if (!equal(c)) out.push_back(plan_text::printable(c.difference) + ".");
    }
  }
  for (const VerifiedReference& r : verified.references) {
    out.push_back(
        fmt::format("{} gradients: the largest error against the float64 reference is {:.2e} of the update ({}); the "
                    "tolerance is {:.0e}{}.",
                    r.name, r.result.max_error, plan_text::printable(r.result.worst), r.result.tolerance,
                    close(r) ? "" : ", so the check fails"));
  }
  return out;
}

std::vector<Figure> facts(const Verified& verified) {
  int64_t matrices = 0;
  int64_t elements = 0;
  for (const VerifiedReference& r : verified.references) {
    matrices += r.result.matrices;
    elements += r.result.elements;
  }
  const auto nearest =
      std::ranges::max_element(verified.references, {}, [](const VerifiedReference& r) { return r.result.share(); });
  return {Figure::count("cases", "cases", std::ssize(verified.cases)),
          Figure::yes_no("bitwise_equal", "same bits as one rank", std::ranges::all_of(verified.cases, equal)),
          error_figure(nearest->result).with_note(fmt::format("tolerance {:.0e}", nearest->result.tolerance)),
          Figure::count("reference_matrices", "matrices checked", matrices).with_note("against float64"),
          Figure::count("reference_elements", "other elements checked", elements).with_note("AdamW and Lion")};
}

}  // namespace

report::Page verify_page(const Problem& problem, const Verified& verified) {
  report::Page page;
  page.title = fmt::format("{} on {} against one rank", plan_text::printable(problem.model),
                           counted(problem.ranks, "rank", "ranks"));
  page.subtitle = verified.how;
  page.findings = findings(verified);
  page.facts = facts(verified);
  Comparison cases{
      .title = "Cases",
      .lead = "Every case takes the same steps on the same gradients. Its weights are compared with those of one rank.",
      .row_label = "case"};
  const bool all_equal = std::ranges::all_of(verified.cases, equal);
  for (const VerifiedCase& c : verified.cases) {
    Comparison::Row row{
        c.name, {Figure::count("waves", "waves", c.waves), Figure::yes_no("bitwise_equal", "same bits", equal(c))}};
    if (!all_equal) {
      row.figures.push_back(Figure::text("difference", "first difference", plan_text::printable(c.difference)));
    }
    cases.rows.push_back(std::move(row));
  }
  Comparison references{.title = "Against float64",
                        .lead = "Weights compared with a slow reference in float64 that shares no code with Muster.",
                        .row_label = "gradients"};
  for (const VerifiedReference& r : verified.references) {
    references.rows.push_back({r.name,
                               {error_figure(r.result), Figure::number("tolerance", "tolerance", r.result.tolerance),
                                Figure::text("worst", "nearest to its tolerance", plan_text::printable(r.result.worst)),
                                Figure::count("matrices", "matrices", r.result.matrices),
                                Figure::count("elements", "other elements", r.result.elements)}});
  }
  page.comparisons = {cases, references};
  for (const std::string& reason : verified.skipped) page.notes.push_back("Skipped: " + plan_text::printable(reason));
  return page;
}

}  // namespace muster::cli
