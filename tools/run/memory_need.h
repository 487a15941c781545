// How much memory a model in a run takes, and how much this machine has.
#pragma once

#include <cstdint>
#include <string>

#include "run/workload.h"

namespace muster::run {

// Bytes. On the CPU everything is on the host.
struct MemoryNeed {
  int64_t device = 0;  // weights, gradients, state and scratch
  int64_t host = 0;    // what a check keeps on the host, whatever the device

  MemoryNeed& operator+=(const MemoryNeed& other);
};

// What `rank` (kWhole: the one rank that holds everything) holds besides the scratch of its plans.
// `bench` keeps weights and state per case, and one set of gradients.
MemoryNeed bench_memory(const Workload& workload, int32_t rank, int64_t cases);
// `verify` runs one case at a time and keeps one rank's result. `gradients`: sets of them under way at once.
MemoryNeed verify_memory(const Workload& workload, int32_t rank, int64_t gradients);

// What the system can give without swapping: /proc/meminfo, and the limits of this process's cgroups (both versions)
// less what they use. `root` is put before these paths. Nothing known: the largest number.
int64_t available_memory(const std::string& root = "");

}  // namespace muster::run
