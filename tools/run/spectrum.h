// Gradients by the singular values of their matrices, each element from its place alone: nobody holds a matrix to make
// one. The row factors of a parameter stay as they are from step to step and from rank to rank, so that momentum and
// averages keep the spectrum.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "muster/problem.h"
#include "run/hash.h"

namespace muster::run {

enum class Spectrum : uint8_t {
  kNormal,    // independent elements
  kDecaying,  // singular values evenly spaced in their logarithms, down to 1e-3 of the largest
  kSteep,     // the same, down to 1e-6
  kGraded,    // rows that fall to 2^-20 of the first
  kLowRank,   // rank 4
  kOutliers,  // rank 2, and elements of 1e-3 beside it
  kEqual,     // all the same
};

std::vector<Spectrum> all_spectra();
std::string_view name(Spectrum spectrum);
std::string spectrum_names();                    // "normal, decaying, ..."
Spectrum parse_spectrum(std::string_view name);  // throws InvalidArgument with the names there are

// A matrix algorithm's parameter as (batch..., rows, columns), blocks not cut.
struct UncutMatrix {
  int64_t rows = 1;
  int64_t columns = 1;
};
UncutMatrix uncut_matrix(const Parameter& parameter);

// The elements of one parameter at one step.
class Values {
 public:
  // About normal.
  Values(uint64_t stream, float size) : stream_(stream), size_(size), unit_(unit_of(size)) {}
  // `row_stream` must not depend on step and rank. Elements are of about the given size.
  Values(const Parameter& parameter, Spectrum spectrum, uint64_t stream, uint64_t row_stream, float size);

  float at(int64_t element) const {
    return spectrum_ == Spectrum::kNormal ? normal(hash(stream_, element), unit_) : of_matrix(element);
  }

 private:
  float of_matrix(int64_t element) const;

  Spectrum spectrum_ = Spectrum::kNormal;
  uint64_t stream_;
  uint64_t row_stream_ = 0;
  float size_;
  float unit_;
  UncutMatrix shape_{};
};

}  // namespace muster::run
