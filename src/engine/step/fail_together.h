// Work that fails on all ranks or on none: an error on one rank must not leave the others waiting for it.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "muster/communicator.h"

namespace muster::engine {

// Runs `work`, which must not communicate, on every rank and waits for all of them. Returns the error of the lowest
// rank that failed, the same text on every rank; empty if none did. Throws CommError.
std::string failure_of_any(Communicator& comm, std::string_view label, const std::function<void()>& work);

// Throws that error: as ResourceError if the machine is at fault, else as InvalidArgument.
void fail_together(Communicator& comm, std::string_view label, const std::function<void()>& work);

}  // namespace muster::engine
