#include "report/terms.h"

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <utility>

namespace muster::report {
namespace {

constexpr std::array<std::pair<std::string_view, std::string_view>, 27> kFigures = {{
    {"step_ms",
     "One optimizer step, from its start on all ranks until the last rank is done. Exchanges and computation overlap."},
    {"step_ms_min", "The fastest of the timed steps."},
    {"host_ms",
     "The part of a step that is neither in kernels nor waiting for other ranks. On CUDA: until step() returns."},
    {"speed_up", "How many times as fast as the first strategy of the report."},
    {"predicted_ms",
     "The optimizer step that the planner predicts with its cost table. Exchanges and computation of different waves "
     "overlap, so it can be shorter than the time for which the slowest rank is busy."},
    {"over_bound",
     "Busy time of the slowest rank, divided by the bound: the mean of all ranks, or the time of the largest matrix if "
     "that is longer. Matrices are not split, so no plan goes below 1 for the same total work."},
    {"imbalance", "Busy time of the slowest rank, divided by the mean of all ranks. 1 is a perfect balance."},
    {"bound_ms",
     "The time that no schedule can beat on this cluster: all work shared out evenly, all bytes that must leave their "
     "nodes, or the largest matrix, whichever takes longest."},
    {"step_over_bound", "The step, divided by the bound. 1 is the best possible."},
    {"compute_ms", "Computation of the busiest rank."},
    {"exposed_comm_ms",
     "The part of the step that exchanges take beyond computation, because nothing overlaps with it."},
    {"collectives", "Calls per step in which ranks exchange data."},
    {"waves", "Parts into which the step is cut. While one wave is computed, the next arrives and the last leaves."},
    {"messages", "Messages between pairs of ranks per step, all ranks together."},
    {"bytes_sent_total", "Bytes that travel between ranks per step, padding included."},
    {"bytes_sent_max", "Bytes that the busiest rank sends per step, padding included."},
    {"padding_bytes",
     "Zeros that are sent to fill up rounds or shards. Zero matrices are also orthogonalized like real ones."},
    {"scratch_bytes_max", "The most memory that a rank needs besides weights, gradients and state."},
    {"memory_bytes_max", "Weights, gradients, optimizer state and scratch of the fullest rank; no activations."},
    {"fits", "Whether that memory is within what a rank of the cluster has."},
    {"bitwise_equal",
     "Whether all weights at the end have the same bits as those of the first strategy, or of one rank."},
    {"optimizer_ms", "The part of a training step that the optimizer takes."},
    {"train_step_ms", "One training step: forward, backward and optimizer."},
    {"optimizer_share", "The optimizer's part of the time of training steps."},
    {"unigram_entropy", "The loss of a model that knows only how frequent each letter is."},
    {"same_losses", "Whether the losses of all steps have the same bits."},
    {"error",
     "Distance of the weights from a float64 reference that shares no code with Muster, divided by the size of the "
     "update."},
}};

std::optional<Strategy> strategy_of(std::string_view name) {
  name = name.substr(0, name.find(','));  // "global, 2 waves"
  const std::vector<Strategy>& all = all_strategies();
  const auto found = std::ranges::find(all, name, [](Strategy s) { return muster::name(s); });
  return found == all.end() ? std::nullopt : std::optional(*found);
}

}  // namespace

std::string_view strategy_words(Strategy strategy) {
  switch (strategy) {
    case Strategy::kGlobal:
      return "Muster's planner: one owner per matrix, balanced over the whole model by predicted time, without "
             "padding.";
    case Strategy::kPerMatrix:
      return "One exchange per matrix, as a loop over parameters does it.";
    case Strategy::kChunked:
      return "Rounds of as many equal matrices as there are ranks; zero matrices fill up the last round. The schedule "
             "of "
             "Dion before microsoft/dion #28, and of xtuner before xtuner #1716.";
    case Strategy::kGrouped:
      return "Groups of whole parameters, each padded to the number of ranks. The schedule of modded-nanogpt #132.";
    case Strategy::kMegabatch:
      return "One round per shape, padded to a multiple of the ranks. The schedule of microsoft/dion #28.";
    case Strategy::kRouted:
      return "A path per shape, chosen by what divides: local, rounds of one matrix per rank, or gather and "
             "reduce-scatter. The "
             "schedule of xtuner #1716.";
    case Strategy::kLayerwise:
      return "Whole matrices per rank, as ZeRO-1 stores them.";
  }
  return "";
}

std::string_view figure_words(std::string_view key) {
  const auto* const found = std::ranges::find(kFigures, key, &std::pair<std::string_view, std::string_view>::first);
  return found == kFigures.end() ? std::string_view() : found->second;
}

std::vector<Term> terms_of(const Page& page) {
  std::vector<Term> terms;
  std::set<std::string> seen;
  const auto add_strategy = [&](const std::string& shown) {
    if (const std::optional<Strategy> strategy = strategy_of(shown); strategy && seen.insert(shown).second) {
      terms.push_back({shown, shown, std::string(strategy_words(*strategy))});
    }
  };
  const auto add_figures = [&](const std::vector<Figure>& figures) {
    for (const Figure& figure : figures) {
      const std::string_view text = figure_words(figure.key);
      if (text.empty() || !seen.insert(figure.key).second) continue;
      const std::string_view source = name(figure.source);
      terms.push_back(
          {figure.key, source.empty() ? figure.label : figure.label + ", " + std::string(source), std::string(text)});
    }
  };
  for (const StrategyRow& row : page.strategies) add_strategy(row.strategy);
  add_figures(page.facts);
  for (const Comparison& comparison : page.comparisons) {
    if (!comparison.rows.empty()) add_figures(comparison.rows.front().figures);
  }
  if (!page.strategies.empty()) add_figures(page.strategies.front().figures);
  return terms;
}

}  // namespace muster::report
