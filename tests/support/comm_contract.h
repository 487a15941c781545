// What every communicator does, whatever carries it. Each case is run by all ranks together on a healthy communicator
// and leaves it healthy.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "muster/communicator.h"

namespace muster::test {

struct ContractCase {
  std::string name;  // fit for a test's name
  std::function<void(Communicator& comm)> run;
};

const std::vector<ContractCase>& contract_cases();

// One rank, the last, breaks the contract; the others must be told. Each case needs a communicator of its own with a
// short timeout, and two ranks or more.
struct FailureCase {
  std::string name;
  std::function<void(std::unique_ptr<Communicator>& comm)> run;  // throws the CommError
  std::vector<std::string> words;  // in the error; {culprit} stands for the rank that is to blame
};

const std::vector<FailureCase>& failure_cases();

// Runs it on this rank and says in one line what is wrong with what came of it; empty if all is well.
std::string run_failure_case(const FailureCase& failure, std::unique_ptr<Communicator> comm);

// What the CommError says that the call throws.
std::string error_of(const std::function<void()>& call);

}  // namespace muster::test
