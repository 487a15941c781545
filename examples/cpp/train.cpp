// Learns to predict the next character of a text from the 8 before it. Every rank has the whole model and reads other
// places of the text; Muster averages the gradients, and trains the matrix with NorMuon and the bias with AdamW.
//
//   mpirun -n 4 ./train FILE
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <random>

#include "muster/error.h"
#include "muster/optimizer.h"

constexpr int kContext = 8, kSymbols = 96, kInputs = kContext * kSymbols, kBatch = 256, kSteps = 300;

int main(int argc, char** argv) try {
  std::ifstream file(argc > 1 ? argv[1] : "");
  std::vector<int> text;
  for (std::istreambuf_iterator<char> c(file), end; c != end; ++c) text.push_back(*c >= 32 && *c < 127 ? *c - 31 : 0);
  if (text.size() < 1000) throw muster::InvalidArgument("usage: train FILE, a text of 1000 characters or more");

  // [problem]
  const auto communicator = muster::make_mpi_communicator();
  const int ranks = communicator->size();
  muster::Problem problem{.model = "next-character", .ranks = ranks, .meshes = {{"world", {{"replicate", ranks}}, {}}}};
  problem.grad_sync = true;
  const muster::Layout everywhere{.placements = {muster::Placement::replicate()}};
  problem.parameters.push_back({.name = "weight", .shape = {kSymbols, kInputs}, .layout = everywhere});
  problem.parameters.push_back({.name = "bias", .shape = {kSymbols}, .layout = everywhere});
  problem.parameters[1].algorithm = muster::Algorithm::kAdamW;
  // [/problem]

  // [optimizer]
  std::vector<float> weight(kSymbols * kInputs), bias(kSymbols), weight_grad(weight.size()), bias_grad(bias.size());
  muster::Optimizer optimizer(problem, {}, *communicator, {{weight.data()}, {bias.data()}});
  std::vector<void*> gradients{weight_grad.data(), bias_grad.data()};
  // [/optimizer]
  std::mt19937 random(static_cast<unsigned>(communicator->rank()));
  for (int step = 0; step < kSteps; ++step) {
    std::fill(weight_grad.begin(), weight_grad.end(), 0.0F);
    std::fill(bias_grad.begin(), bias_grad.end(), 0.0F);
    double loss = 0;
    for (int b = 0; b < kBatch; ++b) {
      const size_t at = kContext + random() % (text.size() - kContext);
      const auto input = [&](int s, int c) { return s * kInputs + c * kSymbols + text[at - 1 - c]; };
      std::vector<float> p = bias;
      float sum = 0;
      for (int s = 0; s < kSymbols; ++s) {
        for (int c = 0; c < kContext; ++c) p[s] += weight[input(s, c)];
        sum += p[s] = std::exp(p[s]);
      }
      loss -= std::log(p[text[at]] / sum) / kBatch / ranks;
      for (int s = 0; s < kSymbols; ++s) {
        const float slope = (p[s] / sum - (s == text[at] ? 1.0F : 0.0F)) / kBatch;
        for (int c = 0; c < kContext; ++c) weight_grad[input(s, c)] += slope;
        bias_grad[s] += slope;
      }
    }
    // [step]
    optimizer.group(0).lr = 0.2 * (1 - static_cast<double>(step) / kSteps);
    optimizer.step(gradients);
    // [/step]
    communicator->all_reduce(std::span(&loss, 1), muster::ReduceOp::kSum, "loss")->wait();
    if (communicator->rank() == 0 && step % 50 == 49) std::printf("step %3d  loss %.3f\n", step + 1, loss);
  }
  // [errors]
} catch (const muster::Error& error) {
  std::fprintf(stderr, "train: %s\n", error.what());
  return 1;
}
// [/errors]
