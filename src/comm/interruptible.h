// A communicator whose waits end when a check of the caller's throws, as Python's does on Ctrl-C.
#pragma once

#include <functional>
#include <memory>

#include "muster/communicator.h"

namespace muster::comm {

// `inner`, except that wait() and watch() call `check` about ten times per second, on the thread that waits. What it
// throws aborts the communicator and ends the wait. Destructors of requests do not call it.
std::unique_ptr<Communicator> make_interruptible(std::unique_ptr<Communicator> inner, std::function<void()> check);

}  // namespace muster::comm
