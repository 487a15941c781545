#include "run/memory_need.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>

#include "base/text.h"

namespace muster::run {
namespace {

constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();

// State of one element that is not kept per row or column.
int64_t state_width(Algorithm algorithm) {
  constexpr int64_t kNumber = sizeof(float);
  return algorithm == Algorithm::kAdamW ? 2 * kNumber : kNumber;
}

// Memory of one optimizer. Replicas share the state.
int64_t weights_and_state(const Workload& workload, int32_t rank) {
  const Problem& problem = workload.problem();
  int64_t bytes = 0;
  for (int32_t p = 0; p < static_cast<int32_t>(problem.parameters.size()); ++p) {
    const Parameter& parameter = problem.parameters[p];
    const int64_t replicas = rank == kWhole ? 1 : workload.replicas(p);
    bytes += workload.elements(p, rank) * byte_size(parameter.dtype);
    bytes += workload.elements(p, rank) / replicas * state_width(parameter.algorithm);
  }
  return bytes;
}

int64_t weights(const Workload& workload, int32_t rank) {
  const Problem& problem = workload.problem();
  int64_t bytes = 0;
  for (int32_t p = 0; p < static_cast<int32_t>(problem.parameters.size()); ++p) {
    bytes += workload.elements(p, rank) * byte_size(problem.parameters[p].dtype);
  }
  return bytes;
}

int64_t gradients(const Workload& workload, int32_t rank) {
  int64_t bytes = 0;
  for (int32_t p = 0; p < static_cast<int32_t>(workload.problem().parameters.size()); ++p) {
    bytes += workload.elements(p, rank) * byte_size(workload.gradient_dtype(p, rank));
  }
  return bytes;
}

// The first number of a file; kUnknown if there is none ("max", no such file).
int64_t first_number(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::string word;
  file >> word;
  return base::parse_integer(word).value_or(kUnknown);
}

// The number behind `key` in lines of "key number".
int64_t number_of(const std::filesystem::path& path, std::string_view key, int64_t otherwise) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string word;
    int64_t number = 0;
    if (words >> word >> number && word == key) return number;
  }
  return otherwise;
}

// The files that a version of cgroups has in each folder.
struct CgroupFiles {
  const char* limit;
  const char* used;
  const char* reclaimable;  // in memory.stat: page cache that the kernel takes back first
};
constexpr CgroupFiles kVersion1{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"};
constexpr CgroupFiles kVersion2{"memory.max", "memory.current", "inactive_file"};

// The least that a cgroup and those around it leave. A container may see its own cgroup as the root of `mount`.
int64_t left_in_cgroup(const std::filesystem::path& mount, std::filesystem::path path, const CgroupFiles& files) {
  int64_t least = kUnknown;
  for (path = path.relative_path();; path = path.parent_path()) {
    const std::filesystem::path folder = mount / path;
    const int64_t limit = first_number(folder / files.limit);
    const int64_t used = first_number(folder / files.used);
    if (limit != kUnknown && used != kUnknown) {
      const int64_t reclaimable = number_of(folder / "memory.stat", files.reclaimable, 0);
      least = std::min(least, std::max<int64_t>(0, limit - std::max<int64_t>(0, used - reclaimable)));
    }
    if (path.empty()) return least;
  }
}

}  // namespace

MemoryNeed& MemoryNeed::operator+=(const MemoryNeed& other) {
  device += other.device;
  host += other.host;
  return *this;
}

MemoryNeed bench_memory(const Workload& workload, int32_t rank, int64_t cases) {
  return {cases * weights_and_state(workload, rank) + gradients(workload, rank), 0};
}

MemoryNeed verify_memory(const Workload& workload, int32_t rank, int64_t sets) {
  return {weights_and_state(workload, rank) + sets * gradients(workload, rank), weights(workload, rank)};
}

int64_t available_memory(const std::string& root) {
  constexpr int64_t kKib = 1024;
  const int64_t kib = number_of(root + "/proc/meminfo", "MemAvailable:", kUnknown);
  int64_t least = kib == kUnknown ? kUnknown : kib * kKib;
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "0::/path" or "4:memory,hugetlb:/path"
    const std::vector<std::string_view> parts = base::split(line, ':');
    if (parts.size() < 3) continue;
    const std::string path = line.substr(parts[0].size() + parts[1].size() + 2);
    const std::vector<std::string_view> controllers = base::split(parts[1], ',');
    if (parts[0] == "0" && parts[1].empty()) {
      least = std::min(least, left_in_cgroup(root + "/sys/fs/cgroup", path, kVersion2));
    } else if (std::find(controllers.begin(), controllers.end(), "memory") != controllers.end()) {
      least = std::min(least, left_in_cgroup(root + "/sys/fs/cgroup/memory", path, kVersion1));
    }
  }
  return least;
}

}  // namespace muster::run
