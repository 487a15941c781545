#include "plan_text/plan_table.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "plan/catalog.h"
#include "plan_text/text.h"
#include "plan_text/words.h"

namespace muster::plan_text {
namespace {

constexpr int kLinesMax = 16;
constexpr int kFirstWaves = 8;
constexpr int kLastWaves = 4;
constexpr int kBins = 8;
constexpr int kWaveColumns = 74;       // of a wave's line without its shapes
constexpr int kTransportColumns = 15;  // where some wave is not ragged
constexpr int kRankColumns = 52;       // of a rank's line without its bar
constexpr int kElementsColumn = 10;
constexpr std::string_view kLegend = "load █ compute ▒ exchange";

class Table {
 public:
  Table(const PlanReport& report, const TableOptions& options) : report_(report), options_(options) {}

  std::string text() {
    header();
    headline();
    waves();
    ranks();
    return std::move(out_);
  }

 private:
  std::string styled(std::string_view code, std::string_view text) const {
    return options_.colour ? fmt::format("\x1b[{}m{}\x1b[0m", code, text) : std::string(text);
  }
  std::string bold(std::string_view text) const { return styled("1", text); }
  std::string dim(std::string_view text) const { return styled("2", text); }

  void line(std::string_view text = {}) {
    out_ += text;
    out_ += '\n';
  }
  void field(std::string_view label, std::string_view text) {
    line(fmt::format("  {} {}", dim(fmt::format("{:<10}", label)), text));
  }

  // The heads of columns, and a line under them.
  void rule(std::string_view heads) {
    line(heads);
    line(dim(" " + repeated("─", options_.width - 1)));
  }

  void header() {
    const Problem& problem = report_.problem;
    line(fmt::format("{} on {}, strategy {}", bold(printable(problem.model)), counted_text(problem.ranks, "rank"),
                     bold(name(report_.plan.strategy))));
    std::string meshes;
    for (const Mesh& mesh : problem.meshes) {
      if (!meshes.empty()) meshes += "; ";
      if (problem.meshes.size() > 1 && !mesh.name.empty()) meshes += printable(mesh.name) + ": ";
      meshes += mesh_words(mesh);
    }
    field(problem.meshes.size() > 1 ? "meshes" : "mesh", meshes);
    const int64_t zeros = zero_matrix_count(report_.summary);
    field("model", fmt::format("{}, {} elements, {}{}", counted_text(std::ssize(problem.parameters), "parameter"),
                               magnitude_text(total_elements(problem)),
                               counted_text(std::ssize(report_.plan.owner), "matrix", "matrices"),
                               zeros > 0 ? fmt::format(" and {} of zeros", grouped_text(zeros)) : ""));
    if (const int64_t repeated = repeated_matrix_count(report_.plan); repeated > 0) {
      field("replicas", fmt::format("each orthogonalizes {} of the matrices for itself", grouped_text(repeated)));
    }
    field("cost", printable(report_.cost.device));
    field("hash", hash_text(report_.plan.hash));
    line();
  }

  void headline() {
    const PlanSummary& s = report_.summary;
    field("step", fmt::format("{} predicted; slowest rank {}, mean {}", bold(time_text(s.predicted_ns)),
                              time_text(s.slowest_ns), time_text(s.mean_ns)));
    field("balance",
          fmt::format("{} × mean, {} × bound (largest matrix {})", bold(fmt::format("{:.3f}", s.imbalance())),
                      fmt::format("{:.3f}", s.over_bound()), time_text(s.largest_matrix_ns)));
    const int32_t ahead = report_.plan.in_flight;
    field("exchange",
          fmt::format("{} in {}{}", bold(counted_text(s.collectives, "collective")), counted_text(s.rounds, "round"),
                      ahead > 1 ? fmt::format(", {} in flight", grouped_text(ahead)) : ""));
    field("sent", fmt::format("{} in all, {} by the busiest rank; padding {}", bytes_text(s.bytes_sent_total),
                              bytes_text(s.bytes_sent_max),
                              s.padding_bytes > 0 ? styled("33", bytes_text(s.padding_bytes)) : "0 B"));
    field("scratch",
          fmt::format(
              "{} at most{}", bytes_text(s.scratch_bytes_max),
              report_.plan.strategy == Strategy::kGlobal ? fmt::format(" ({})", scratch_cap_text(report_.plan)) : ""));
    if (report_.plan_ns > 0) field("planning", time_text(report_.plan_ns));
    line();
  }

  void waves() {
    const auto& waves = report_.summary.waves;
    if (waves.empty()) return;
    const auto count = static_cast<int32_t>(waves.size());
    shapes_ = count_shapes(plan::Catalog(report_.problem), report_.plan.wave, count);
    show_transport_ = std::any_of(report_.plan.waves.begin(), report_.plan.waves.end(),
                                  [](const Wave& wave) { return wave.transport != Transport::kRagged; });
    shapes_width_ = std::max(16, options_.width - kWaveColumns - (show_transport_ ? kTransportColumns : 0));
    rule(fmt::format("{:>6} {:>10}  {:<{}}{}{:>10}{:>10}{:>8}{:>9}{:>9}{:>9}", "wave", "matrices", "shapes",
                     shapes_width_, show_transport_ ? "  transport    " : "", "in", "out", "owners", "t in", "compute",
                     "t out"));
    const bool all = count <= kLinesMax;
    const int32_t first = all ? count : kFirstWaves;
    for (int32_t k = 0; k < first; ++k) wave_line(k);
    if (!all) {
      line(dim(fmt::format("{:>6} {} more", "…", grouped_text(count - kFirstWaves - kLastWaves))));
      for (int32_t k = count - kLastWaves; k < count; ++k) wave_line(k);
    }
    line();
  }

  void wave_line(int32_t k) {
    const auto at = static_cast<size_t>(k);
    const PlanSummary::WaveTotal& wave = report_.summary.waves[at];
    std::string matrices = grouped_text(wave.matrices);
    if (wave.zeros > 0) matrices += fmt::format("+{}", grouped_text(wave.zeros));
    std::string transport;
    if (show_transport_ && at < report_.plan.waves.size()) {
      transport = fmt::format("  {:<13}", word(report_.plan.waves[at].transport));
    }
    const std::string shapes = shapes_text(shapes_[at], static_cast<size_t>(shapes_width_));
    line(fmt::format("{:>6} {:>10}  {:<{}}{}{:>10}{:>10}{:>8}{:>9}{:>9}{:>9}", k, matrices, shapes, shapes_width_,
                     transport, bytes_text(wave.bytes_in), bytes_text(wave.bytes_out), grouped_text(wave.owners),
                     time_text(wave.in_ns), time_text(wave.compute_ns), time_text(wave.out_ns)));
  }

  void ranks() {
    const auto& ranks = report_.summary.ranks;
    if (ranks.empty()) return;
    const auto count = static_cast<int32_t>(ranks.size());
    const bool all = count <= kLinesMax;
    label_width_ = all ? 0 : 9;
    show_elements_ = std::any_of(ranks.begin(), ranks.end(), [](const auto& rank) { return rank.elements > 0; });
    const int columns = kRankColumns + (show_elements_ ? kElementsColumn : 0);
    cells_ = std::clamp(options_.width - columns - label_width_, 24, 40);
    const std::string blank(static_cast<size_t>(cells_ - display_width(kLegend)), ' ');
    const std::string elements = show_elements_ ? fmt::format("{:>{}}", "elements", kElementsColumn) : "";
    rule(fmt::format("{:>6} {:<{}} {} {} compute {} exchange{}{:>11}{:>10}{}{:>11}{:>11}", "rank", "", label_width_,
                     "load", styled("36", "█"), styled("33", "▒"), blank, "time", "matrices", elements, "sent",
                     "scratch"));
    if (all) {
      for (int32_t rank = 0; rank < count; ++rank) rank_line(rank, "");
      return;
    }
    const std::vector<int32_t> order = ranks_by_load(report_.summary);
    rank_line(order.front(), "slowest");
    rank_line(order[order.size() / 2], "median");
    rank_line(order.back(), "fastest");
    histogram(order);
  }

  void rank_line(int32_t index, std::string_view label) {
    const PlanSummary::Rank& rank = report_.summary.ranks[static_cast<size_t>(index)];
    const BarCells cells = bar_cells({rank.compute_ns, rank.exchange_ns, report_.summary.slowest_ns, cells_});
    const int blank = std::max(0, cells_ - cells.compute - cells.exchange);
    const std::string elements =
        show_elements_ ? fmt::format("{:>{}}", magnitude_text(rank.elements), kElementsColumn) : "";
    line(fmt::format("{:>6} {:<{}} {}{}{}{:>11}{:>10}{}{:>11}{:>11}", index, label, label_width_,
                     styled("36", repeated("█", cells.compute)), styled("33", repeated("▒", cells.exchange)),
                     std::string(static_cast<size_t>(blank), ' '), time_text(rank.total_ns()),
                     grouped_text(rank.matrices), elements, bytes_text(rank.bytes_sent),
                     bytes_text(rank.scratch_bytes)));
  }

  // A histogram of the time of all ranks, slowest bin first.
  void histogram(const std::vector<int32_t>& order) {
    const auto load = [this](int32_t rank) { return report_.summary.ranks[static_cast<size_t>(rank)].total_ns(); };
    const int64_t low = load(order.back());
    const int64_t high = load(order.front());
    const int bins = high == low ? 1 : kBins;
    const double width = static_cast<double>(high - low) / bins;
    std::array<int64_t, kBins> counts{};
    for (const int32_t rank : order) {
      const double above = static_cast<double>(load(rank) - low);
      const int bin = width > 0 ? std::min(bins - 1, static_cast<int>(above / width)) : 0;
      ++counts[static_cast<size_t>(bin)];
    }
    const int64_t most = *std::max_element(counts.begin(), counts.end());
    const auto edge = [low, width](int i) { return time_text(low + std::llround(width * i), std::llround(width)); };
    line();
    rule(fmt::format("{:>24}  {:>6}", "time", "ranks"));
    for (int bin = bins - 1; bin >= 0; --bin) {
      const int64_t count = counts[static_cast<size_t>(bin)];
      const std::string times = bins == 1 ? time_text(low) : fmt::format("{} – {}", edge(bin), edge(bin + 1));
      const std::string bar = repeated("█", bar_cells({count, 0, most, cells_}).compute);
      line(fmt::format("{:>24}  {:>6}{}{}", times, grouped_text(count), bar.empty() ? "" : "  ", styled("36", bar)));
    }
  }

  const PlanReport& report_;
  const TableOptions& options_;
  std::string out_;
  std::vector<std::vector<ShapeCount>> shapes_;  // per wave
  bool show_transport_ = false;
  bool show_elements_ = false;  // some rank updates elements for its replicas
  int shapes_width_ = 0;
  int label_width_ = 0;
  int cells_ = 0;  // of a bar
};

}  // namespace

std::string plan_table(const PlanReport& report, const TableOptions& options) { return Table(report, options).text(); }

}  // namespace muster::plan_text
