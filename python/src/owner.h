// Remembers the process that made an object. fork() copies the object into a child, without its threads and
// connections.
#pragma once

#include <string_view>
#include <unistd.h>

#include <fmt/format.h>

#include "muster/error.h"

namespace muster::python {

class Owner {
 public:
  bool is_this_process() const { return getpid() == process_; }
  // Throws Error in a forked child.
  void require(std::string_view what) const {
    if (is_this_process()) return;
    throw Error(fmt::format("this {} belongs to process {}, and process {} is a fork of it: make another here", what,
                            process_, getpid()));
  }

 private:
  pid_t process_ = getpid();
};

}  // namespace muster::python
