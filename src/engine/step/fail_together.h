// Failing together: what goes wrong on one rank alone must not leave the others waiting for it.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "muster/communicator.h"

namespace muster::engine {

// Runs `work`, which must not communicate, on every rank and waits for all of them. Empty, or what the lowest rank that
// failed had thrown: the same text on every rank. Throws CommError.
std::string failure_of_any(Communicator& comm, std::string_view label, const std::function<void()>& work);

// The same, thrown as InvalidArgument.
void together(Communicator& comm, std::string_view label, const std::function<void()>& work);

}  // namespace muster::engine
