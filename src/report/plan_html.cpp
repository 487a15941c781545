#include "report/plan_html.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <numeric>

#include <fmt/format.h>

#include "plan/catalog.h"
#include "plan/replicas.h"
#include "report/text.h"
#include "report/words.h"

namespace muster::report {
namespace {

constexpr int32_t kBarsMax = 256;
constexpr int32_t kWavesMax = 64;
constexpr int32_t kWavesLast = 8;
constexpr size_t kShapesWidth = 80;
constexpr double kChartWidth = 1024;
constexpr double kChartHeight = 160;
constexpr std::array<std::string_view, 10> kPalette = {"#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951",
                                                       "#ff8ab7", "#a463f2", "#97bbf5", "#9c6b4e", "#9498a0"};

constexpr std::string_view kHead = R"(<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<style>
:root{color-scheme:light dark;--line:#8884}
body{font:15px/1.5 system-ui,sans-serif;max-width:1060px;margin:2em auto;padding:0 1em}
h1{font-size:1.5em;margin:0}h2{font-size:1.1em;margin:2em 0 .5em}p{margin:.3em 0;opacity:.8}
.tiles{display:grid;grid-template-columns:repeat(auto-fill,minmax(150px,1fr));gap:.6em;margin:1.2em 0}
.tiles div{border:1px solid var(--line);border-radius:6px;padding:.5em .8em}
.tiles b{display:block;font-size:1.25em}.tiles span{opacity:.7;font-size:.85em}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
td,th{padding:.2em .6em;text-align:right;border-bottom:1px solid var(--line)}.l{text-align:left}
svg{width:100%;height:auto;display:block;border-bottom:1px solid var(--line)}
i{display:inline-block;width:.8em;height:.8em;margin:0 .3em 0 1em;border-radius:2px}
</style>
)";

class Page {
 public:
  explicit Page(const PlanReport& report) : report_(report), summary_(report.summary), catalog_(report.problem) {
    const auto ranks = static_cast<int32_t>(summary_.ranks.size());
    per_bar_ = std::max(1, (ranks + kBarsMax - 1) / kBarsMax);
    bars_ = (ranks + per_bar_ - 1) / per_bar_;
  }

  std::string text() {
    head();
    tiles();
    waves();
    loads();
    ownership();
    add("</body></html>\n");
    return std::move(out_);
  }

 private:
  template <typename... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Args>(args)...);
  }

  void head() {
    const std::string model = html_escaped(report_.problem.model);
    out_ += kHead;
    add("<title>{} on {} ranks</title></head><body>\n", model, report_.problem.ranks);
    add("<h1>{} on {} rank{}</h1>\n<p>", model, grouped_text(report_.problem.ranks),
        report_.problem.ranks == 1 ? "" : "s");
    for (const Mesh& mesh : report_.problem.meshes) add("mesh {}, ", html_escaped(mesh_words(mesh)));
    add("strategy {}, {} parameters, {} elements, {} matrices, cost table {}, hash {}</p>\n",
        name(report_.plan.strategy), grouped_text(std::ssize(report_.problem.parameters)),
        magnitude_text(total_elements(report_.problem)), grouped_text(std::ssize(report_.plan.owner)),
        html_escaped(report_.cost.device), hash_text(report_.plan.hash));
  }

  void tile(std::string_view value, std::string_view label) {
    add("<div><b>{}</b><span>{}</span></div>", value, label);
  }

  void tiles() {
    add("<div class=\"tiles\">");
    tile(time_text(summary_.predicted_ns), "predicted step");
    tile(time_text(summary_.slowest_ns), "slowest rank");
    tile(fmt::format("{:.3f}", summary_.imbalance()), "slowest / mean rank");
    tile(fmt::format("{:.3f}", summary_.over_bound()), "slowest rank / bound");
    tile(grouped_text(summary_.collectives), fmt::format("collectives, {} rounds", grouped_text(summary_.rounds)));
    tile(bytes_text(summary_.bytes_sent_total), "sent in all");
    tile(bytes_text(summary_.bytes_sent_max), "sent by the busiest rank");
    tile(bytes_text(summary_.padding_bytes), fmt::format("padding, {} zero matrices", zero_matrix_count(summary_)));
    tile(bytes_text(summary_.scratch_bytes_max), "scratch of a rank, at most");
    tile(time_text(report_.plan_ns), "to plan");
    add("</div>\n");
  }

  void waves() {
    const auto count = static_cast<int32_t>(summary_.waves.size());
    const auto shapes = count_shapes(catalog_, report_.plan.wave, count);
    add("<h2>Waves</h2>\n<table><tr><th>wave<th>matrices<th class=\"l\">shapes<th class=\"l\">transport<th>bytes in"
        "<th>bytes out<th>owners<th>time in<th>compute<th>time out</tr>\n");
    for (int32_t k = 0; k < count; ++k) {
      if (count > kWavesMax && k == kWavesMax - kWavesLast) {
        k = count - kWavesLast;
        add("<tr><td colspan=\"10\" class=\"l\">… {} more</tr>\n", grouped_text(count - kWavesMax));
      }
      const auto at = static_cast<size_t>(k);
      const PlanSummary::WaveTotal& wave = summary_.waves[at];
      add("<tr><td>{}<td>{}{}<td class=\"l\">{}<td class=\"l\">{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}</tr>\n", k,
          grouped_text(wave.matrices), wave.zeros > 0 ? fmt::format(" + {} zero", wave.zeros) : "",
          shapes_text(shapes[at], kShapesWidth), word(report_.plan.waves.at(at).transport), bytes_text(wave.bytes_in),
          bytes_text(wave.bytes_out), grouped_text(wave.owners), time_text(wave.in_ns), time_text(wave.compute_ns),
          time_text(wave.out_ns));
    }
    add("</table>\n");
  }

  void open_chart() { add("<svg viewBox=\"0 0 {} {}\" preserveAspectRatio=\"none\">\n", kChartWidth, kChartHeight); }

  // One part of the bar at `index`, from `low` to `high` as shares of the height.
  void bar_part(int32_t index, double low, double high, std::string_view colour, std::string_view title) {
    const double step = kChartWidth / bars_;
    add("<rect x=\"{:.2f}\" y=\"{:.2f}\" width=\"{:.2f}\" height=\"{:.2f}\" fill=\"{}\"><title>{}</title></rect>\n",
        index * step, (1 - high) * kChartHeight, step * 0.9, (high - low) * kChartHeight, colour, title);
  }

  void loads() {
    add("<h2>Predicted time of each rank</h2>\n<p><i style=\"background:{}\"></i>compute<i style=\"background:{}\"></i>"
        "exchange{}</p>\n",
        kPalette[0], kPalette[1],
        per_bar_ > 1 ? fmt::format("; each bar is the slowest of {} neighbouring ranks", per_bar_) : "");
    open_chart();
    const double full = static_cast<double>(std::max<int64_t>(1, summary_.slowest_ns));
    for (int32_t bar = 0; bar < bars_; ++bar) {
      const int32_t rank = slowest_of(bar);
      const PlanSummary::Rank& load = summary_.ranks[static_cast<size_t>(rank)];
      const double compute = static_cast<double>(load.compute_ns) / full;
      const std::string title =
          fmt::format("rank {}: {} compute, {} exchange, {} matrices, {} sent", rank, time_text(load.compute_ns),
                      time_text(load.exchange_ns), load.matrices, bytes_text(load.bytes_sent));
      bar_part(bar, 0, compute, kPalette[0], title);
      bar_part(bar, compute, static_cast<double>(load.total_ns()) / full, kPalette[1], title);
    }
    add("</svg>\n");
  }

  int32_t slowest_of(int32_t bar) const {
    const auto first = summary_.ranks.begin() + bar * per_bar_;
    const auto last =
        summary_.ranks.begin() + std::min<std::ptrdiff_t>(std::ssize(summary_.ranks), (bar + 1) * per_bar_);
    const auto slowest =
        std::max_element(first, last, [](const auto& a, const auto& b) { return a.total_ns() < b.total_ns(); });
    return static_cast<int32_t>(slowest - summary_.ranks.begin());
  }

  // What one bar owns, by colour. Shapes beyond the palette share its last colour, so that the page stays small.
  struct Owned {
    std::array<double, kPalette.size()> elements{};
    std::array<int64_t, kPalette.size()> matrices{};
  };

  std::vector<Owned> owned_by_bar(const std::vector<ShapeCount>& palette) const {
    std::vector<Owned> result(static_cast<size_t>(bars_));
    int32_t replicas = 1;
    for (int32_t j = 0; j < catalog_.matrix_count(); ++j) {
      if (plan::in_each_replica(report_.plan, j)) replicas = std::max(replicas, catalog_.holders_of(j).replicas);
    }
    for (int32_t replica = 0; replica < replicas; ++replica) add_owned(palette, replica, result);
    return result;
  }

  // Matrices with one owner count with the first replica.
  std::vector<int32_t> bar_of_owners(int32_t replica) const {
    std::vector<int32_t> bar_of(report_.plan.owner);
    for (size_t j = 0; j < bar_of.size(); ++j) {
      const auto matrix = static_cast<int32_t>(j);
      int32_t owner = bar_of[j];
      if (plan::in_each_replica(report_.plan, matrix)) {
        const plan::HolderSet& set = catalog_.holders_of(matrix);
        owner = replica < set.replicas ? set.counterpart(owner, replica) : -1;
      } else if (replica > 0) {
        owner = -1;
      }
      bar_of[j] = owner < 0 ? -1 : owner / per_bar_;
    }
    return bar_of;
  }

  void add_owned(const std::vector<ShapeCount>& palette, int32_t replica, std::vector<Owned>& result) const {
    size_t bar = 0;
    for (const auto& shapes : count_shapes(catalog_, bar_of_owners(replica), bars_)) {
      Owned& owned = result[bar++];
      for (const ShapeCount& shape : shapes) {
        size_t colour = 0;
        while (colour + 1 < palette.size() &&
               (palette[colour].rows != shape.rows || palette[colour].columns != shape.columns)) {
          ++colour;
        }
        owned.elements[colour] +=
            static_cast<double>(shape.rows) * static_cast<double>(shape.columns) * static_cast<double>(shape.count);
        owned.matrices[colour] += shape.count;
      }
    }
  }

  void ownership() {
    if (report_.plan.owner.empty()) return;
    const std::vector<int32_t> everywhere(report_.plan.owner.size(), 0);
    std::vector<ShapeCount> palette = count_shapes(catalog_, everywhere, 1).front();
    const bool rest = palette.size() > kPalette.size();
    if (rest) palette.resize(kPalette.size());
    const auto label = [&](size_t colour) {
      if (rest && colour + 1 == palette.size()) return std::string("other shapes");
      return fmt::format("{}×{}", palette[colour].rows, palette[colour].columns);
    };
    add("<h2>Who owns which matrices</h2>\n<p>Height is owned elements.");
    for (size_t i = 0; i < palette.size(); ++i) add("<i style=\"background:{}\"></i>{}", kPalette[i], label(i));
    add("</p>\n");
    open_chart();
    const std::vector<Owned> owned = owned_by_bar(palette);
    double full = 1;
    for (const Owned& bar : owned)
      full = std::max(full, std::accumulate(bar.elements.begin(), bar.elements.end(), 0.0));
    for (int32_t bar = 0; bar < bars_; ++bar) {
      const Owned& parts = owned[static_cast<size_t>(bar)];
      double low = 0;
      for (size_t i = 0; i < palette.size(); ++i) {
        if (parts.matrices[i] == 0) continue;
        const double high = low + parts.elements[i] / full;
        bar_part(bar, low, high, kPalette[i],
                 fmt::format("{}: {} of {}", ranks_of(bar), grouped_text(parts.matrices[i]), label(i)));
        low = high;
      }
    }
    add("</svg>\n");
  }

  std::string ranks_of(int32_t bar) const {
    const int32_t first = bar * per_bar_;
    const int32_t last = std::min(report_.problem.ranks, first + per_bar_) - 1;
    return first == last ? fmt::format("rank {}", first) : fmt::format("ranks {} to {}", first, last);
  }

  const PlanReport& report_;
  const PlanSummary& summary_;
  const plan::Catalog catalog_;
  std::string out_;
  int32_t per_bar_ = 1;  // ranks
  int32_t bars_ = 0;
};

}  // namespace

std::string plan_html(const PlanReport& report) { return Page(report).text(); }

}  // namespace muster::report
