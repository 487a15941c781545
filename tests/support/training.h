// Trains a problem on made-up gradients, every rank a thread, on the device of the options, and keeps what came out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "muster/error.h"
#include "muster/optimizer.h"

namespace muster::test {

// A value for an element of a parameter, about uniform in -1 to 1, whoever asks.
float made_up(size_t parameter, int64_t element, uint64_t salt);

void store(Dtype dtype, float value, std::byte* to);  // rounds to nearest even
float rounded(Dtype dtype, float value);

struct Training {
  Problem problem;
  OptimizerOptions options;
  int steps = 3;
  std::chrono::milliseconds timeout{60'000};

  // The gradient that a rank has for an element, and whether it has one for the parameter at all.
  std::function<float(int32_t rank, size_t parameter, int64_t element, int step)> gradient;
  std::function<bool(int32_t rank, size_t parameter, int step)> present;  // null: always
  std::function<StepOptions(int step)> step_options;                      // null: the default
  // With overlap: which gradients a rank says are ready before it calls step(), in this order, one every 20
  // microseconds; null: none.
  std::function<std::vector<int32_t>(int32_t rank, int step)> arrival;
  std::function<void(Optimizer& optimizer, int step)> before_step;  // sets hyperparameters
  // Whether a weight (if it has one, its extra alone), or a gradient, is elsewhere than in the last step. Null: weights
  // stay, gradients move.
  std::function<bool(size_t parameter, int step)> weight_moves;
  std::function<bool(size_t parameter, int step)> gradient_moves;
  std::function<WeightForm(size_t parameter)> form;  // null: plain
  std::function<int32_t(size_t parameter)> group;    // null: 0
  // Between the optimizer and its communicator; null: nothing.
  std::function<std::unique_ptr<Communicator>(std::unique_ptr<Communicator>)> tamper;
  std::function<void(int32_t rank, const Optimizer& optimizer)> measure;       // after construction; null: nothing
  std::function<void(Optimizer& optimizer)> before;                            // the first step
  std::function<void(Optimizer& optimizer, const std::string& error)> failed;  // a step threw this
  std::function<void(Optimizer& optimizer)> after;                             // the last step
};

// What a rank has.
struct RankMemory {
  std::vector<std::vector<int64_t>> elements;   // global, in storage order, a parameter
  std::vector<std::vector<std::byte>> weights;  // a parameter
  std::vector<std::vector<std::byte>> extra;
  std::vector<StateTensor> state;      // unsharded
  std::vector<StepStats> stats;        // a step
  std::string error;                   // what it ended with
  ErrorCode code = ErrorCode::kOther;  // of that error
  std::string about{};                 // the parameter that it names by code
};

// What each rank refuses if they have done these numbers of steps before; empty where it refuses nothing.
std::vector<std::string> refusals_after(const Training& training, const std::vector<int64_t>& steps_done);

// On gradients that depend on parameter, element and step alone.
Training training(Problem problem);

std::vector<std::vector<int64_t>> held_elements(const Problem& problem, int32_t rank);

std::vector<RankMemory> train(const Training& training);
// One of its ranks, over whatever communicator. Throws.
RankMemory train_rank(const Training& training, Communicator& communicator);
std::vector<std::string> errors(const std::vector<RankMemory>& ranks);

// The same on one rank: what it is given for what many have is their sum in the order of the ranks over their number,
// where Muster averages; else what each of them has.
Training on_one_rank(const Training& many);

// Empty, or what differs between many ranks and one: weights of every holder, and the whole state.
std::string difference(const Problem& problem, const std::vector<RankMemory>& many, const RankMemory& one);
// The same of one rank in two trainings.
std::string difference(const Problem& problem, const RankMemory& a, const RankMemory& b);

}  // namespace muster::test
