#include "plan_text/explain_text.h"

#include <fmt/format.h>

#include "plan_text/text.h"
#include "plan_text/words.h"

namespace muster::plan_text {
namespace {

using plan::Candidate;
using plan::MatrixExplanation;

double held_share(const MatrixExplanation& matrix, const Candidate& candidate) {
  const double elements = static_cast<double>(matrix.rows) * static_cast<double>(matrix.columns);
  return elements > 0 ? static_cast<double>(candidate.held_elements) / elements : 0;
}

bool holds_all(const MatrixExplanation& matrix, const Candidate& candidate) {
  return held_share(matrix, candidate) >= 1;
}

double over(int64_t value, int64_t base) {
  return base > 0 ? static_cast<double>(value) / static_cast<double>(base) - 1 : 0;
}

// The alternative that would carry the least, of those for which `accept` holds; null if there is none.
template <typename Accept>
const Candidate* least_loaded(const MatrixExplanation& matrix, Accept accept) {
  const Candidate* best = nullptr;
  for (size_t i = 1; i < matrix.candidates.size(); ++i) {
    const Candidate& candidate = matrix.candidates[i];
    if (accept(candidate) && (best == nullptr || candidate.load_ns < best->load_ns)) best = &candidate;
  }
  return best;
}

// Some candidate would end lower than the owner does; that alone does not shorten the slowest rank.
std::string why_not(const Candidate& owner, const Candidate& other) {
  const int64_t more = other.cost_ns() - owner.cost_ns();
  return fmt::format("rank {} would carry less with it ({} against {}){}, but the slowest rank would not get faster",
                     other.rank, time_text(other.load_ns), time_text(owner.load_ns),
                     more > 0 ? fmt::format(" at {} more work", time_text(more)) : "");
}

std::string reason_among_holders(const MatrixExplanation& matrix, const Candidate& owner, bool all) {
  const auto peer = [&](const Candidate& c) { return all ? holds_all(matrix, c) : c.held_elements > 0; };
  const Candidate* best = least_loaded(matrix, peer);
  const std::string holds =
      all ? fmt::format("Rank {} already holds all of it", owner.rank)
          : fmt::format("Rank {} holds {} of it", owner.rank, percent_text(held_share(matrix, owner)));
  if (best == nullptr) {
    const Candidate* other = least_loaded(matrix, [](const Candidate&) { return true; });
    if (all && other != nullptr && other->cost_ns() > owner.cost_ns()) {
      return fmt::format("{}, so nothing has to reach it; on rank {} it would cost {} more.", holds, other->rank,
                         time_text(other->cost_ns() - owner.cost_ns()));
    }
    if (all) return holds + ", so nothing has to reach it.";
    return fmt::format("{}, and none of the lightest alternatives holds any.", holds);
  }
  if (owner.load_ns > best->load_ns) return fmt::format("{}; {}.", holds, why_not(owner, *best));
  return fmt::format("{} and is the least loaded of the holders: {}, against {} (+{}) on rank {} with it.", holds,
                     time_text(owner.load_ns), time_text(best->load_ns),
                     percent_text(over(best->load_ns, owner.load_ns)), best->rank);
}

std::string reason_off_holders(const MatrixExplanation& matrix, const Candidate& owner) {
  const Candidate* holder = least_loaded(matrix, [](const Candidate& c) { return c.held_elements > 0; });
  if (holder == nullptr) {
    // The alternatives are the lightest ones: holders that are not among them would carry no less than the last.
    return fmt::format("Moved off its holders: each of them would carry at least {} with it; rank {} carries {}.",
                       time_text(matrix.candidates.back().load_ns), owner.rank, time_text(owner.load_ns));
  }
  if (holder->load_ns > owner.load_ns) {
    return fmt::format(
        "Moved off its holders: the best of them, rank {}, would carry {} with it, {} more than rank {} does.",
        holder->rank, time_text(holder->load_ns), percent_text(over(holder->load_ns, owner.load_ns)), owner.rank);
  }
  return fmt::format("Rank {} holds none of it; {}.", owner.rank, why_not(owner, *holder));
}

std::string matrix_text(const PlanReport& report, const MatrixExplanation& matrix) {
  std::string out = fmt::format("{}×{}{}, wave {}, on {}", matrix.rows, matrix.columns,
                                matrix.normuon ? ", NorMuon" : "", matrix.wave, counted_text(matrix.holders, "holder"));
  if (matrix.replicas > 1) out += fmt::format(" ({} replicas)", matrix.replicas);
  if (matrix.candidates.empty()) return out + "\n";
  out += fmt::format(", owner rank {}{}\n", matrix.candidates.front().rank,
                     matrix.each_replica ? ", and one like it in each replica" : "");
  out += fmt::format("    {:>7} {:>8} {:>15} {:>10} {:>10} {:>10} {:>10} {:>14}\n", "rank", "holds", "orthogonalize",
                     "normalize", "exchange", "start", "cost", "load with it");
  for (size_t i = 0; i < matrix.candidates.size(); ++i) {
    const Candidate& c = matrix.candidates[i];
    out += fmt::format("  {} {:>7} {:>8} {:>15} {:>10} {:>10} {:>10} {:>10} {:>14}\n", i == 0 ? "→" : " ", c.rank,
                       percent_text(held_share(matrix, c)), time_text(c.orthogonalize_ns), time_text(c.normalize_ns),
                       time_text(c.exchange_ns), time_text(c.start_ns), time_text(c.cost_ns()), time_text(c.load_ns));
  }
  return out + fmt::format("    {}\n", reason(report, matrix));
}

// Neighbours of which the same is to be said (the experts of one rank) are said together.
std::string matrices_text(const PlanReport& report, const std::vector<MatrixExplanation>& matrices) {
  std::string out;
  for (size_t first = 0; first < matrices.size();) {
    const std::string text = matrix_text(report, matrices[first]);
    size_t last = first;
    while (last + 1 < matrices.size() && matrix_text(report, matrices[last + 1]) == text) ++last;
    out += first == last
               ? fmt::format("\n  matrix {}: {}", matrices[first].index, text)
               : fmt::format("\n  matrices {} to {}, each: {}", matrices[first].index, matrices[last].index, text);
    first = last + 1;
  }
  return out;
}

}  // namespace

std::string reason(const PlanReport& report, const MatrixExplanation& matrix) {
  const Candidate& owner = matrix.candidates.front();
  if (report.plan.strategy != Strategy::kGlobal) {
    return fmt::format("Strategy {} decides by position, not by cost; rank {} holds {} of it.",
                       name(report.plan.strategy), owner.rank, percent_text(held_share(matrix, owner)));
  }
  if (report.problem.ranks == 1) return "There is only one rank.";
  if (owner.held_elements == 0) return reason_off_holders(matrix, owner);
  return reason_among_holders(matrix, owner, holds_all(matrix, owner));
}

std::string updaters_text(const PlanReport& report, const plan::Explanation& explanation) {
  if (explanation.updaters.empty()) return "Each holder updates what it holds.";
  const Parameter& parameter = report.problem.parameters.at(static_cast<size_t>(explanation.parameter));
  int64_t rest = element_count(parameter.shape);
  std::string parts;
  for (const auto& [rank, elements] : explanation.updaters) {
    parts += fmt::format("{}{} on rank {}", parts.empty() ? "" : ", ", grouped_text(elements), rank);
    rest -= elements;
  }
  if (rest > 0) parts += fmt::format(", {} elsewhere", grouped_text(rest));
  return fmt::format("The ranks that hold it share the updating, by elements: {}.", parts);
}

std::string explain_text(const PlanReport& report, const plan::Explanation& explanation) {
  const Parameter& parameter = report.problem.parameters.at(static_cast<size_t>(explanation.parameter));
  const Mesh& mesh = report.problem.meshes.at(static_cast<size_t>(parameter.layout.mesh));
  std::string out =
      fmt::format("{}: {} {}, {}, {}\n", printable(parameter.name), shape_words(parameter.shape), word(parameter.dtype),
                  word(parameter.algorithm), counted_text(element_count(parameter.shape), "element"));
  const int64_t replicas = replica_count(mesh, parameter.layout);
  out += fmt::format("  layout: {} on mesh {}; {}, {} of each element\n", layout_words(mesh, parameter.layout),
                     mesh_words(mesh), counted_text(mesh.size(), "rank"), counted_text(replicas, "copy", "copies"));
  if (!is_matrix_algorithm(parameter.algorithm)) return out + fmt::format("  {}\n", updaters_text(report, explanation));
  out += fmt::format("  {}\n", counted_text(explanation.matrix_count, "matrix", "matrices"));
  out += matrices_text(report, explanation.matrices);
  const int64_t more = explanation.matrix_count - std::ssize(explanation.matrices);
  if (more > 0) out += fmt::format("\n  … and {} more\n", grouped_text(more));
  return out;
}

}  // namespace muster::plan_text
