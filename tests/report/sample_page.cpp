// Writes a page with every part a report can have, for the test that opens it in a browser.
// Usage: report_sample_page FILE [RANKS]
#include <cmath>
#include <iostream>
#include <limits>

#include <fmt/format.h>

#include "plan_text/sample.h"
#include "report/page.h"
#include "report/plan_page.h"
#include "report/write_file.h"

namespace muster::report {
namespace {

CurveChart curves() {
  CurveChart chart{"Loss", "step", "loss (nats)", {}, {{"unigram entropy", 3.3}}};
  const auto add = [&chart](const std::string& name, double end, double rate) {
    Curve curve{name, {}, {}};
    for (int step = 0; step <= 200; ++step) {
      curve.x.push_back(step);
      curve.y.push_back(end + (4.6 - end) * std::exp(-rate * step) + 0.02 * std::sin(step * 0.7));
    }
    chart.curves.push_back(std::move(curve));
  };
  add("normuon, 1 rank", 1.7, 0.03);
  add("normuon, 4 ranks", 1.7, 0.03);
  add("muon", 1.8, 0.025);
  add("adamw", 2.1, 0.015);
  chart.curves.back().y[100] = std::numeric_limits<double>::quiet_NaN();
  return chart;
}

// `waves` waves that pipeline: the next one arrives while one is computed. Rank r is r % 7 microseconds late.
TracedStep step(const std::string& name, int32_t rank, int32_t waves) {
  const int64_t clock = 1'000'000 * (rank + 1);
  TracedStep traced{rank, name, clock, 0, {}};
  int64_t at = clock + 1000 * (rank % 7);
  const auto add = [&](std::string what, int32_t wave, int64_t length, int64_t bytes) {
    traced.events.push_back({std::move(what), bytes > 0, wave, at, at + length, bytes});
    if (bytes == 0) at += length;
  };
  for (int32_t k = 0; k < waves; ++k) {
    add("pack", k, 4'000, 0);
    add(fmt::format("wave {} in", k), k, 30'000, 1 << 20);
    add("wait in", k, 6'000, 0);
    add("orthogonalize 4 x 768x768", k, 40'000 + 1000 * (rank % 5), 0);
    add(fmt::format("wave {} out", k), k, 28'000, 1 << 20);
    add("apply", k, 5'000, 0);
  }
  traced.end_ns = at;
  return traced;
}

Page every_part(int32_t ranks) {
  plan_text::Sample sample = plan_text::make_sample({.ranks = ranks, .waves = 3});
  sample.problem.model = "</script><script>alert(1)</script>";
  const Alternative chunked{"chunked", sample.summary};
  PlanSummary even = sample.summary;
  for (PlanSummary::Rank& rank : even.ranks) rank.compute_ns = sample.summary.mean_ns;
  sample.summary = even;
  Page page = plan_page(sample.report(), std::span(&chunked, 1));
  page.charts = {curves()};
  page.facts.push_back(Figure::number("final_loss", "final loss", 1.70312345));
  page.facts.push_back(Figure::share("optimizer_share", "optimizer's share of a step", 0.0625));
  page.timelines_note = "Made up.";
  page.timelines_source = Source::kSimulated;
  for (const char* name : {"chunked", "global"}) {
    for (int32_t rank = 0; rank < ranks; ++rank) {
      page.timelines.push_back(step(name, rank, name == std::string("global") ? 3 : 8));
    }
  }
  return page;
}

}  // namespace
}  // namespace muster::report

int main(int argc, char** argv) {
  if (argc < 2) {
    std::cerr << "usage: report_sample_page FILE [RANKS]\n";
    return 2;
  }
  const int ranks = argc > 2 ? std::atoi(argv[2]) : 4;
  muster::report::write_file(argv[1], muster::report::page_html(muster::report::every_part(ranks)));
  return 0;
}
