// What `muster train` found out, as a report; beside other trainings, if there are any.
#pragma once

#include <string>
#include <vector>

#include "report/page.h"
#include "train_output.h"

namespace muster::cli {

// What `muster train --json` said of another one. Throws InvalidArgument for what it did not say.
OtherTraining read_training(const std::string& file);

// The last step of the first run, of every rank, if it was traced.
std::vector<report::TracedStep> traced_steps(const TrainOutcome& outcome);

// At least one run, traced.
report::Page train_page(const TrainOutcome& outcome);

}  // namespace muster::cli
