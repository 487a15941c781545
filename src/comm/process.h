// Checks whether the process of another rank is alive. Shared memory does not report a killed process: without this
// check only the timeout would.
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
