// Whether the process of another rank is still there. Shared memory carries no news of a death, so that a rank killed
// on this machine would otherwise be noticed by the timeout alone.
#pragma once

#include <cstdint>

namespace muster::comm {

// Plain data: ranks send it to one another.
struct ProcessId {
  uint64_t boot = 0;        // this start of this machine
  uint64_t namespace_ = 0;  // of process numbers: containers have their own
  int64_t process = 0;
};

// Zeros where the system does not tell.
ProcessId this_process();

// True only if it ran in the same place as this process, and runs no more.
bool is_gone(const ProcessId& other, const ProcessId& self);

}  // namespace muster::comm
