// training_bits OUT [--from OLD] [--gpu]: trains every case for four steps and writes what came out, one file per case;
// with --from, starts each from the checkpoint that another build left in OLD after two steps. scripts/compare_bits
// compares the files of two builds.
#include <filesystem>
#include <fstream>
#include <iostream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "cases.h"
#include "muster/communicator.h"
#include "rank_training.h"

namespace {

constexpr int kSaved = 2;
constexpr int kSteps = 4;

void write(const std::filesystem::path& path, const std::vector<std::vector<std::byte>>& ranks) {
  std::ofstream file(path, std::ios::binary);
  for (const auto& bytes : ranks) {
    file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  }
  if (!file.flush()) throw std::runtime_error("cannot write " + path.string());
}

std::vector<std::vector<std::byte>> train_all(const Case& c, const Run& run) {
  const auto communicators = muster::make_local_communicators(c.problem.ranks);
  std::vector<std::vector<std::byte>> out(communicators.size());
  std::vector<std::string> errors(communicators.size());
  std::vector<std::thread> threads;
  for (size_t r = 0; r < communicators.size(); ++r) {
    threads.emplace_back([&, r] {
      try {
        out[r] = train(c, run, *communicators[r]);
      } catch (const std::exception& error) {
        errors[r] = error.what();
        communicators[r]->abort(error.what());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& error : errors) {
    if (!error.empty()) throw std::runtime_error(c.name + ": " + error);
  }
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  std::filesystem::path out;
  std::filesystem::path from;
  bool gpu = false;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--gpu") {
      gpu = true;
    } else if (argument == "--from" && i + 1 < argc) {
      from = argv[++i];
    } else {
      out = argument;
    }
  }
  if (out.empty()) {
    std::cerr << "usage: training_bits OUT [--from OLD] [--gpu]\n";
    return 2;
  }
  try {
    std::filesystem::create_directories(out);
    const std::vector<Case> cases = gpu ? gpu_cases() : all_cases();
    for (const Case& c : cases) {
      Run run{0, kSteps, "", (out / (c.name + ".checkpoint")).string(), kSaved};
      if (!from.empty()) run = {kSaved, kSteps, (from / (c.name + ".checkpoint")).string(), "", 0};
      write(out / (c.name + ".bits"), train_all(c, run));
    }
    std::cout << cases.size() << " cases\n";
  } catch (const std::exception& error) {
    std::cerr << "training_bits: " << error.what() << '\n';
    return 1;
  }
}
