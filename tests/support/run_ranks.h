// Ranks as threads of a test.
#pragma once

#include <chrono>
#include <functional>

#include "muster/communicator.h"

namespace muster::test {

// Runs body(rank) for every rank, each in its thread. What one throws is a failure of the test that names the rank. If
// they are not done in time, prints which are stuck and aborts the process: threads cannot be stopped.
void run_ranks(int32_t ranks, const std::function<void(int32_t rank)>& body,
               std::chrono::seconds limit = std::chrono::seconds(120));

// The same over a local communicator. A rank that ends or throws leaves it, so that the others do not wait for it.
void run_ranks(int32_t ranks, const std::function<void(Communicator& comm)>& body,
               const CommOptions& options = {std::chrono::seconds(60)});

}  // namespace muster::test
