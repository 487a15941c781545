#include "tune_page.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "plan_text/text.h"

namespace muster::cli {
namespace {

using report::Comparison;
using report::Figure;
using report::Source;

Figure measured(const Figure& figure) { return figure.from(Source::kMeasured); }

std::string shape_text(const run::TuneResult::Rate& r) { return fmt::format("{}×{}", r.rows, r.columns); }

// As the command prints it.
double tenths(double value) { return std::round(value * 10) / 10; }

Comparison rates(const run::TuneResult& result) {
  Comparison rates{.title = "Orthogonalization by shape",
                   .lead = "How fast one rank orthogonalizes a batch of matrices while all ranks work.",
                   .row_label = "shape",
                   .rows = {}};
  for (const run::TuneResult::Rate& r : result.rates) {
    rates.rows.push_back(
        {shape_text(r),
         {measured(Figure::number("gflops", "GFLOP/s", tenths(r.gflops))), Figure::count("batch", "batch", r.batch)}});
  }
  return rates;
}

// An exchange needs two ranks; the table of a single one keeps the built-in figures.
std::vector<Figure> costs(const run::TuneResult& result) {
  const CostTable& t = result.table;
  const auto exchange = [&](const Figure& figure) {
    return result.exchanges_measured ? measured(figure) : figure.with_note("built in, not measured: one rank");
  };
  return {measured(Figure::time("batch_ns", "start of a batch", t.batch_ns)),
          measured(Figure::rate("memory_mbps", "memory, momentum and apply", t.memory_mbps)),
          exchange(Figure::time("exchange_ns", "exchange", t.exchange_ns)),
          exchange(Figure::time("message_ns", "message", t.message_ns)),
          exchange(Figure::rate("intra_node_mbps", "bandwidth in a node", t.intra_node_mbps)),
          exchange(Figure::share("overlap_percent", "exchange hidden by computation",
                                 static_cast<double>(t.overlap_percent) / 100)),
          Figure::rate("inter_node_mbps", "bandwidth between nodes", t.inter_node_mbps)
              .with_note("built in, not measured")};
}

std::vector<std::string> findings(const run::TuneResult& result, const std::string& file) {
  std::vector<std::string> out;
  if (!result.rates.empty()) {
    const auto [slow, fast] = std::ranges::minmax_element(result.rates, {}, &run::TuneResult::Rate::gflops);
    out.push_back(
        fmt::format("A rank orthogonalizes at {:.1f} GFLOP/s ({}, batch of {}) to {:.1f} GFLOP/s ({}, batch of {}).",
                    slow->gflops, shape_text(*slow), slow->batch, fast->gflops, shape_text(*fast), fast->batch));
  }
  const CostTable& t = result.table;
  out.push_back(result.exchanges_measured
                    ? fmt::format("An exchange takes {} to start and moves {:.2f} GB/s within the machine.",
                                  plan_text::time_text(t.exchange_ns), static_cast<double>(t.intra_node_mbps) / 1000)
                    : "Exchanges were not measured, because there was one rank: the table keeps the built-in figures.");
  out.push_back(
      fmt::format("The cost table is in {}; plan, simulate and bench use it with --cost.", plan_text::printable(file)));
  return out;
}

}  // namespace

report::Page tune_page(const run::TuneResult& result, const std::string& how, const std::string& file) {
  report::Page page;
  page.title = "Costs of this machine";
  page.subtitle = fmt::format("{} · {}", plan_text::printable(result.table.device), how);
  page.findings = findings(result, file);
  page.facts = costs(result);
  if (!result.rates.empty()) page.comparisons.push_back(rates(result));
  return page;
}

}  // namespace muster::cli
