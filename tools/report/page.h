// A report: what a command found out, as one HTML file that needs nothing else: no network, font or script. Every part
// may be left out.
//
// A number says where it comes from: measured, predicted or simulated. The page writes the word next to it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "report/trace.h"

namespace muster::report {

// kNone: counted, or part of the input.
enum class Source : uint8_t { kNone, kMeasured, kPredicted, kSimulated };

std::string_view name(Source source);  // "" for kNone

// One number or word, with what it is.
struct Figure {
  enum class Unit : uint8_t { kText, kCount, kNanoseconds, kBytes, kNumber, kShare, kRatio, kRate, kYesNo };

  std::string key;    // as `--json` calls it; a unit in its name does not count
  std::string label;  // as a person reads it
  Unit unit = Unit::kText;
  std::variant<std::string, int64_t, double> value;
  std::string note{};  // a few more words
  Source source = Source::kNone;

  static Figure text(std::string key, std::string label, std::string value);
  static Figure count(std::string key, std::string label, int64_t value);
  static Figure time(std::string key, std::string label, int64_t nanoseconds);
  static Figure bytes(std::string key, std::string label, int64_t value);
  static Figure number(std::string key, std::string label, double value);
  static Figure share(std::string key, std::string label, double value);  // of 1, shown as per cent
  static Figure ratio(std::string key, std::string label, double value);
  static Figure rate(std::string key, std::string label, int64_t mbps);  // 1e6 bytes per second
  static Figure yes_no(std::string key, std::string label, bool value);

  Figure from(Source where) const;            // the same with another source
  Figure with_note(std::string words) const;  // the same with another note
};

// Who owns which matrix. Matrices that are alike in name and shape are a class ("layers.{}.attn.q 768×768"), in which
// those with the same first number in their names are a layer. `owner` and `wave` run over classes, layers, matrices.
struct PlanMap {
  struct Layer {
    std::string name{};
    int32_t matrices = 0;
  };
  struct Class {
    std::string name{};
    std::string shape{};
    std::vector<Layer> layers{};
  };
  struct Wave {
    int32_t index = 0;
    std::string shapes{};
    std::string transport{};
    std::vector<Figure> figures{};
  };
  std::string strategy{};
  int32_t ranks = 0;
  std::vector<Class> classes{};
  std::vector<int32_t> owner{};
  std::vector<int32_t> wave{};
  // Of matrices that each replica orthogonalizes for itself, an index into `replicas`: ranks of each replica, of which
  // those in the same place as the owner own it, too. Elsewhere -1.
  std::vector<int32_t> repeated{};
  std::vector<std::vector<std::vector<int32_t>>> replicas{};
  int32_t wave_count = 0;
  std::vector<Wave> waves{};  // the first and the last, where there are very many
};

// The predicted time for which every rank is busy, and the predicted step.
struct Load {
  std::string strategy{};
  int64_t step_ns = 0;
  std::vector<int64_t> compute_ns{};
  std::vector<int64_t> exchange_ns{};
};

struct StrategyRow {
  std::string strategy{};
  int64_t bytes_sent = 0;  // by all ranks, padding included
  int64_t padding_bytes = 0;
  std::vector<Figure> figures{};  // the same keys in every row
};

// Rows of figures: bars that show one figure of each row, and a table of all.
struct Comparison {
  struct Row {
    std::string name{};
    std::vector<Figure> figures{};  // the same keys in every row
  };
  std::string title{};
  std::string lead{};
  std::string row_label{};  // what a row is: "training", "case"
  std::vector<Row> rows{};
};

struct Curve {
  std::string name{};
  std::vector<double> x{};
  std::vector<double> y{};  // as many; what is not finite is a gap
  // A band around it, as many again, drawn where both are finite; empty: none.
  std::vector<double> low{};
  std::vector<double> high{};
};

struct CurveChart {
  struct Mark {
    std::string label{};
    double y = 0;
  };
  std::string title{};
  std::string x_label{};
  std::string y_label{};
  std::vector<Curve> curves{};
  std::vector<Mark> marks{};  // level lines: an entropy, a target
  Source source = Source::kNone;
  std::string lead{};                // empty: how to hide curves
  std::optional<double> fit_from{};  // the y axis fits the values from this x on; earlier ones may lie outside
};

// A table of words and figures, which scrolls by itself where it is long or wide.
struct TextTable {
  std::string title{};
  std::string lead{};
  std::vector<std::string> heads{};
  std::vector<std::string> words{};  // heads of columns of words, which begin on the left; the first always does
  std::vector<std::vector<std::string>> rows{};
  std::vector<std::string> total{};  // the line below the rows; empty: none
};

struct Page {
  std::string title{};
  std::string subtitle{};
  std::vector<std::string> findings{};  // sentences that the page begins with
  std::vector<Figure> facts{};
  std::vector<Comparison> comparisons{};
  std::vector<CurveChart> charts{};
  std::vector<StrategyRow> strategies{};  // the last one is shown first
  std::string strategies_note{};          // how they were planned or measured
  std::vector<Load> loads{};              // from before balancing to after it
  std::vector<TracedStep> timelines{};
  std::string timelines_note{};  // which step it is
  Source timelines_source = Source::kNone;
  std::vector<PlanMap> maps{};
  std::vector<TextTable> tables{};
  std::vector<std::string> notes{};
};

std::string page_html(const Page& page);

}  // namespace muster::report
