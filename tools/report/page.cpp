#include "report/page.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "plan_text/text.h"
#include "report/html/assets.h"
#include "report/page_timeline.h"
#include "report/terms.h"
#include "version.h"

namespace muster::report {
namespace {

using Json = nlohmann::ordered_json;

// A browser that is told so refuses whatever would come from elsewhere.
constexpr std::string_view kHead = R"(<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:">
<link rel="icon" href="data:,">
)";

std::string_view unit_name(Figure::Unit unit) {
  switch (unit) {
    case Figure::Unit::kText:
      return "text";
    case Figure::Unit::kCount:
      return "count";
    case Figure::Unit::kNanoseconds:
      return "ns";
    case Figure::Unit::kBytes:
      return "bytes";
    case Figure::Unit::kNumber:
      return "number";
    case Figure::Unit::kShare:
      return "share";
    case Figure::Unit::kRatio:
      return "ratio";
    case Figure::Unit::kRate:
      return "mbps";
    case Figure::Unit::kYesNo:
      return "yes_no";
  }
  return "?";
}

// 5 5 5 7 -> [5, 3, 7, 1].
Json runs_json(const std::vector<int32_t>& values) {
  Json json = Json::array();
  for (size_t i = 0; i < values.size();) {
    size_t next = i;
    while (next < values.size() && values[next] == values[i]) ++next;
    json.push_back(values[i]);
    json.push_back(next - i);
    i = next;
  }
  return json;
}

// Within a script block nothing is escaped but by its own language: "</script" or "<!--" in a name must not be seen.
std::string script_json(const Json& json) {
  const std::string text = json.dump(-1, ' ', false, Json::error_handler_t::replace);
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    if (c == '<') {
      out += "\\u003c";
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace

// Found by nlohmann where it meets the types.
static void to_json(Json& json, const Figure& figure) {
  json = {{"key", figure.key}, {"label", figure.label}, {"unit", unit_name(figure.unit)}};
  std::visit([&json](const auto& value) { json["value"] = value; }, figure.value);
  if (!figure.note.empty()) json["note"] = figure.note;
  if (figure.source != Source::kNone) json["source"] = name(figure.source);
}

static void to_json(Json& json, const Term& term) {
  json = {{"key", term.key}, {"name", term.name}, {"text", term.text}};
}

static void to_json(Json& json, const PlanMap::Layer& layer) { json = Json::array({layer.name, layer.matrices}); }

static void to_json(Json& json, const PlanMap::Class& c) {
  json = {{"name", c.name}, {"shape", c.shape}, {"layers", c.layers}};
}

static void to_json(Json& json, const PlanMap::Wave& wave) {
  json = {{"wave", wave.index}, {"shapes", wave.shapes}, {"transport", wave.transport}, {"figures", wave.figures}};
}

static void to_json(Json& json, const PlanMap& map) {
  json = {{"strategy", map.strategy},
          {"ranks", map.ranks},
          {"classes", map.classes},
          {"owner", map.owner},
          {"wave_runs", runs_json(map.wave)},
          {"repeated_runs", runs_json(map.repeated)},
          {"replicas", map.replicas},
          {"wave_count", map.wave_count},
          {"waves", map.waves}};
}

static void to_json(Json& json, const Load& load) {
  json = {{"strategy", load.strategy},
          {"step_ns", load.step_ns},
          {"compute_ns", load.compute_ns},
          {"exchange_ns", load.exchange_ns}};
}

static void to_json(Json& json, const StrategyRow& row) {
  json = {{"strategy", row.strategy},
          {"bytes_sent", row.bytes_sent},
          {"padding_bytes", row.padding_bytes},
          {"figures", row.figures}};
}

static void to_json(Json& json, const Comparison::Row& row) { json = {{"name", row.name}, {"figures", row.figures}}; }

static void to_json(Json& json, const Comparison& comparison) {
  json = {{"title", comparison.title},
          {"lead", comparison.lead},
          {"row_label", comparison.row_label},
          {"rows", comparison.rows}};
}

// JSON has no infinities: nlohmann writes null for them, which the page takes for a gap.
static void to_json(Json& json, const Curve& curve) {
  json = {{"name", curve.name}, {"x", curve.x}, {"y", curve.y}};
  if (!curve.low.empty()) json.update({{"low", curve.low}, {"high", curve.high}});
}

static void to_json(Json& json, const TextTable& table) {
  json = {{"title", table.title}, {"lead", table.lead}, {"heads", table.heads},
          {"words", table.words}, {"rows", table.rows}, {"total", table.total}};
}

static void to_json(Json& json, const CurveChart::Mark& mark) { json = {{"label", mark.label}, {"y", mark.y}}; }

static void to_json(Json& json, const CurveChart& chart) {
  json = {{"title", chart.title}, {"x_label", chart.x_label},     {"y_label", chart.y_label}, {"curves", chart.curves},
          {"marks", chart.marks}, {"source", name(chart.source)}, {"lead", chart.lead}};
  if (chart.fit_from) json["fit_from"] = *chart.fit_from;
}

static void to_json(Json& json, const Page& page) {
  json = {{"version", kVersion},
          {"title", page.title},
          {"subtitle", page.subtitle},
          {"findings", page.findings},
          {"facts", page.facts},
          {"comparisons", page.comparisons},
          {"charts", page.charts},
          {"strategies", page.strategies},
          {"strategies_note", page.strategies_note},
          {"loads", page.loads},
          {"timelines", timelines_json(page.timelines)},
          {"timelines_note", page.timelines_note},
          {"timelines_source", name(page.timelines_source)},
          {"maps", page.maps},
          {"tables", page.tables},
          {"notes", page.notes},
          {"terms", terms_of(page)}};
}

std::string_view name(Source source) {
  switch (source) {
    case Source::kNone:
      return "";
    case Source::kMeasured:
      return "measured";
    case Source::kPredicted:
      return "predicted";
    case Source::kSimulated:
      return "simulated";
  }
  return "";
}

Figure Figure::text(std::string key, std::string label, std::string value) {
  return {std::move(key), std::move(label), Unit::kText, std::move(value)};
}
Figure Figure::count(std::string key, std::string label, int64_t value) {
  return {std::move(key), std::move(label), Unit::kCount, value};
}
Figure Figure::time(std::string key, std::string label, int64_t nanoseconds) {
  return {std::move(key), std::move(label), Unit::kNanoseconds, nanoseconds};
}
Figure Figure::bytes(std::string key, std::string label, int64_t value) {
  return {std::move(key), std::move(label), Unit::kBytes, value};
}
Figure Figure::number(std::string key, std::string label, double value) {
  return {std::move(key), std::move(label), Unit::kNumber, value};
}
Figure Figure::share(std::string key, std::string label, double value) {
  return {std::move(key), std::move(label), Unit::kShare, value};
}
Figure Figure::ratio(std::string key, std::string label, double value) {
  return {std::move(key), std::move(label), Unit::kRatio, value};
}
Figure Figure::rate(std::string key, std::string label, int64_t mbps) {
  return {std::move(key), std::move(label), Unit::kRate, mbps};
}
Figure Figure::yes_no(std::string key, std::string label, bool value) {
  return {std::move(key), std::move(label), Unit::kYesNo, int64_t{value}};
}

Figure Figure::from(Source where) const {
  Figure copy = *this;
  copy.source = where;
  return copy;
}
Figure Figure::with_note(std::string words) const {
  Figure copy = *this;
  copy.note = std::move(words);
  return copy;
}

std::string page_html(const Page& page) {
  std::string out(kHead);
  out += fmt::format("<title>{}</title>\n", plan_text::html_escaped(page.title));
  out += fmt::format("<style>\n{}</style>\n</head>\n<body>\n", assets().front().text);
  out += "<noscript>This report draws itself with a script of its own; scripts are switched off.</noscript>\n";
  out += fmt::format("<script type=\"application/json\" id=\"data\">{}</script>\n", script_json(Json(page)));
  out += "<script type=\"module\">\n";
  for (const Asset& script : assets().subspan(1)) out += script.text;
  out += "drawReport();\n</script>\n</body>\n</html>\n";
  return out;
}

}  // namespace muster::report
