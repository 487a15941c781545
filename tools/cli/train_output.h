// What `muster train` prints.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "train/train.h"

namespace muster::cli {

// What a step of a training took, and what its plan moves per step.
struct TrainingCost {
  int64_t step_ns = 0;  // medians
  int64_t optimizer_ns = 0;
  int64_t collectives = 0;
  int64_t bytes_sent_max = 0;
  int64_t padding_bytes = 0;
};

// A training that was made before.
struct OtherTraining {
  std::string name;  // "fsdp=4, global (file)"
  std::string mesh;
  std::vector<double> losses;
  std::optional<TrainingCost> cost{};
};

struct TrainOutcome {
  train::Recipe recipe;  // of the first run; each run has the next seed
  train::Execution execution{};
  std::string mesh;
  std::string_view comm{};
  bool several = false;  // --runs was given
  std::optional<double> target{};
  std::vector<train::TrainResult> runs{};
  std::vector<OtherTraining> beside{};

  std::vector<double> final_losses() const;
  std::vector<double> seconds() const;
  bool same_losses() const;  // of the first run and all that it is compared with, to the bit
};

TrainingCost training_cost(const train::TrainResult& run);

std::string training_name(const TrainOutcome& outcome);  // "fsdp=4, global"

std::string training_words(const TrainOutcome& outcome);  // "4 layers of 128, 4 heads, 64 tokens a sequence; ..."
std::string train_heading(const TrainOutcome& outcome);
// One of the lines that tell how it goes.
std::string train_line(int64_t step, double loss, double tokens_per_s, double optimizer_share);
std::string train_ending(const train::TrainResult& result);
std::string train_statistics(const TrainOutcome& outcome);  // of several runs
std::string train_comparison(const TrainOutcome& outcome);  // with the other trainings
std::string train_json(const TrainOutcome& outcome);

}  // namespace muster::cli
