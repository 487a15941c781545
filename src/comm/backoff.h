// Waits between polls: short at first, then longer, never more than a tenth of a millisecond.
#pragma once

namespace muster::comm {

class Backoff {
 public:
  void pause();
  void reset() { polls_ = 0; }

 private:
  int polls_ = 0;
};

}  // namespace muster::comm
