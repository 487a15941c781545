// A report: what a command found out, as one HTML file that needs nothing else: no network, font or script. Every part
// may be left out.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "report/trace.h"

namespace muster::report {

// One number or plan_text::word, with what it is.
struct Figure {
  enum class Unit : uint8_t { kText, kCount, kNanoseconds, kBytes, kNumber, kShare, kRatio, kYesNo };

  std::string key;    // as `--json` calls it; a unit in its name does not count
  std::string label;  // as a person reads it
  Unit unit = Unit::kText;
  std::variant<std::string, int64_t, double> value;
  std::string note{};  // a few more words

  static Figure text(std::string key, std::string label, std::string value);
  static Figure count(std::string key, std::string label, int64_t value);
  static Figure time(std::string key, std::string label, int64_t nanoseconds);
  static Figure bytes(std::string key, std::string label, int64_t value);
  static Figure number(std::string key, std::string label, double value);
  static Figure share(std::string key, std::string label, double value);  // of 1, shown as per cent
  static Figure ratio(std::string key, std::string label, double value);
  static Figure yes_no(std::string key, std::string label, bool value);
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

// The predicted time of every rank.
struct Load {
  std::string strategy{};
  std::vector<int64_t> compute_ns{};
  std::vector<int64_t> exchange_ns{};
};

struct StrategyRow {
  std::string strategy{};
  int64_t bytes_sent = 0;  // by all ranks, padding included
  int64_t padding_bytes = 0;
  std::vector<Figure> figures{};  // the same keys in every row
};

struct Curve {
  std::string name{};
  std::vector<double> x{};
  std::vector<double> y{};  // as many; what is not finite is a gap
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
};

struct Page {
  std::string title{};
  std::string subtitle{};
  std::vector<Figure> facts{};
  std::vector<CurveChart> charts{};
  std::vector<StrategyRow> strategies{};  // the last one is shown first
  std::vector<Load> loads{};              // from before balancing to after it
  std::vector<TracedStep> timelines{};
  std::string timelines_note{};  // where they come from
  std::vector<PlanMap> maps{};
  std::vector<std::string> notes{};
};

std::string page_html(const Page& page);

}  // namespace muster::report
