// A process that saves one checkpoint after the other is killed again and again, whenever it happens to be. What is
// left must load each time, whole: the last save that had returned, or the one that was under way.
//
// Not a gtest: the parent has no threads when it forks.
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <random>
#include <thread>
#include <unistd.h>

#include <sys/mman.h>
#include <sys/wait.h>

#include "engine/checkpoint/checkpoint.h"
#include "support/shards.h"

namespace muster {
namespace {

constexpr int32_t kRanks = 3;
constexpr int kKills = 50;
constexpr int kLongestMilliseconds = 120;

// What the child has done, where the parent can see it.
struct Progress {
  std::atomic<int64_t> saved{-1};
};

[[noreturn]] void save_for_ever(const std::string& directory, int64_t step, Progress& progress) {
  auto communicators = make_local_communicators(kRanks, {std::chrono::seconds(60)});
  const auto body = [&](int32_t rank) {
    for (int64_t s = step;; ++s) {
      const test::WholeState state = test::whole_state(s);
      test::Shard shard(state, rank, kRanks, static_cast<int>(s % test::kCuts));
      shard.take(state);
      engine::save_checkpoint(directory, {s, {}}, shard.tensors, *communicators[rank], {.file_bytes = 300});
      if (rank == 0) progress.saved = s;
    }
  };
  std::vector<std::thread> threads;
  for (int32_t rank = 1; rank < kRanks; ++rank) threads.emplace_back(body, rank);
  body(0);
  std::abort();
}

// The step of the checkpoint, after comparing every bit with what was saved then.
int64_t load(const std::string& directory) {
  test::Shard shard(test::whole_state(0), 0, 1, 0);
  const auto comm = make_local_communicators(1);
  const int64_t step = engine::load_checkpoint(directory, shard.tensors, *comm[0]).step;
  if (!shard.holds(test::whole_state(step))) throw std::runtime_error("mixed states");
  return step;
}

int run(const std::string& directory) {
  void* const shared = ::mmap(nullptr, sizeof(Progress), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) throw std::runtime_error("mmap failed");
  auto& progress = *new (shared) Progress;
  std::mt19937 random(20);
  int64_t step = 0;
  int under_way = 0;
  for (int kill = 0; kill < kKills; ++kill) {
    const pid_t child = ::fork();
    if (child < 0) throw std::runtime_error("fork failed");
    if (child == 0) save_for_ever(directory, step, progress);
    // Every other one, the first among them, until it has saved: on a busy machine none might come that far.
    while (kill % 2 == 0 && progress.saved < step) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (::waitpid(child, nullptr, WNOHANG) != 0) throw std::runtime_error("the saving process ended by itself");
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random() % (kLongestMilliseconds * 1000)));
    ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
      throw std::runtime_error("the saving process ended by itself");

    const int64_t saved = progress.saved;
    const int64_t found = load(directory);
    if (found != saved && found != saved + 1) {
      std::fprintf(stderr, "kill %d: found step %lld; step %lld had been saved\n", kill, static_cast<long long>(found),
                   static_cast<long long>(saved));
      return 1;
    }
    const auto entries = std::distance(std::filesystem::directory_iterator(directory), {});
    if (entries > 8) ++under_way;
    // A save that ends removes what earlier kills left: then there are two checkpoints of some 7 files at most.
    if (saved >= step && entries > 24) {
      std::fprintf(stderr, "kill %d: %lld files are left\n", kill, static_cast<long long>(entries));
      return 1;
    }
    progress.saved = found;
    step = found + 1;
  }
  std::printf("%d kills, %d of them with files of a second checkpoint there; reached step %lld\n", kKills, under_way,
              static_cast<long long>(step));
  return 0;
}

}  // namespace
}  // namespace muster

int main() {
  const std::string directory =
      std::filesystem::temp_directory_path() / ("muster_checkpoint_kill_" + std::to_string(::getpid()));
  int result = 1;
  try {
    result = muster::run(directory);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
  }
  std::filesystem::remove_all(directory);
  return result;
}
