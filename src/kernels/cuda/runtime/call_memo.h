// Memoized calls of a dry run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace muster::kernels::cuda {

// What calls did in the last dry run, so that the next one need not make them again: the bytes that they uploaded,
// their launches, their part of the step's key, and their result. An entry is reused if it is the next in order, starts
// at the same place of the argument table, and has the same inputs; so pointers into the table stay valid.
//
// Entries nest, and both levels pay. The engine memoizes all calls of a step after its agreement: where only rates
// changed, none of them is made, which leaves 2 to 3 of 10 to 21 us of host time per step. Where a gradient or a weight
// moved, that entry misses, but the entries of single batches of matrices within it still match, and the launches of
// their Newton-Schulz steps are not walked through again.
class CallMemo {
 public:
  struct Entry {
    std::vector<int64_t> inputs;
    int64_t position = -1;  // in the argument table; -1: incomplete
    std::vector<std::byte> arguments;
    std::vector<std::byte> result;
    size_t nested = 0;  // entries of calls within these
    int64_t launches = 0;
    uint64_t key = 0;  // of these calls alone
  };

  // The next entry if it can be reused, and skips it and those within it; else null, and open() must follow.
  const Entry* find(std::span<const int64_t> inputs, int64_t position, size_t result_bytes);
  // Begins the next entry, which is incomplete until it is closed. Returns its number.
  size_t open();
  // All entries opened since are nested in it. The caller fills in the rest.
  Entry& close(size_t number, std::span<const int64_t> inputs, int64_t position);
  void restart() { next_ = 0; }  // before each pass of a step
  void clear();

 private:
  std::vector<Entry> entries_;  // in the order of the last dry run's calls
  size_t next_ = 0;
};

}  // namespace muster::kernels::cuda
