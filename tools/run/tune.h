// What things cost on this machine: a cost table, measured.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "muster/communicator.h"
#include "muster/cost.h"
#include "muster/optimizer.h"

namespace muster::run {

struct TuneOptions {
  int threads = 1;  // of a rank, on the CPU
  // Called on every rank as it goes on: a share of the whole, and what comes next.
  std::function<void(double done, const std::string& next)> progress = [](double, const std::string&) {};
};

struct TuneResult {
  struct Rate {
    int64_t rows = 0;
    int64_t columns = 0;
    int64_t batch = 0;
    double gflops = 0;
  };
  CostTable table;          // of one rank while all of them work
  std::vector<Rate> rates;  // what `table.rates` was made from
  // Single ranks have nobody to exchange with; then the table keeps the built-in figures.
  bool exchanges_measured = false;
};

// All ranks call it, each with its device, and get the same. About 20 s on two cores.
TuneResult tune(Communicator& communicator, const Device& device, const TuneOptions& options);

std::string cost_json(const CostTable& table);  // as CostTable::load reads it

}  // namespace muster::run
