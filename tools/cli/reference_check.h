// What one rank computed against the float64 reference, which shares no code with it.
#pragma once

#include <string>
#include <vector>

#include "run/workload.h"

namespace muster::cli {

// Every rank makes the same calls; the ranks share the work out.
class ReferenceCheck {
 public:
  // One matrix of each shape and settings, and more of them while they are cheap; of AdamW and Lion parameters a sample
  // of elements. The workload outlives it.
  struct Options {
    int64_t steps = 2;
    Device::Kind device = Device::Kind::kCpu;  // where the result comes from
  };
  ReferenceCheck(const run::Workload& workload, const Options& options, Communicator& communicator);

  // Bytes that all ranks keep together from take() to run().
  static int64_t kept_bytes(const run::Workload& workload);

  // What became of a parameter; kept if this rank is to check it.
  void take(int32_t parameter, std::span<const std::byte> whole);

  struct Result {
    double max_error = 0;  // ||W - W_ref|| / ||W_0 - W_ref||, of the matrix or sample nearest to its tolerance
    double tolerance = 0;  // of that one
    std::string worst;     // which, and whether along its momentum
    int64_t matrices = 0;
    int64_t elements = 0;  // of AdamW and Lion

    double share() const { return max_error / tolerance; }
    void add(double error, double allowed, const std::string& name);
  };
  Result run();

 private:
  struct Job {
    int32_t parameter = 0;
    int32_t matrix = -1;  // -1: a sample of elements
    int32_t rank = 0;     // who checks it
    double work = 0;
    std::vector<layout::Interval> ranges{};  // of the parameter's elements: all that the check needs
    std::vector<std::byte> after{};          // what became of them, on the rank that checks
  };
  static std::vector<Job> choose_jobs(const run::Workload& workload);

  struct Errors {
    double whole = 0;
    double along = 0;  // each direction counting as much as the momentum has of it
  };
  bool amplifies() const;
  Errors tolerances(const Job& job) const;
  Errors matrix_errors(const Job& job) const;
  double elements_error(const Job& job) const;
  void share(std::vector<Errors>& errors);

  const run::Workload& workload_;
  Options options_;
  Communicator& communicator_;
  std::vector<Job> jobs_;
};

}  // namespace muster::cli
