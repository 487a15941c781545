#include "output.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <unistd.h>

#include "muster/error.h"
#include "ranks.h"

namespace muster::cli {

void print(std::string_view text) {
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  if (!written || std::fflush(stdout) != 0)
    throw Error(std::string("cannot write standard output: ") + std::strerror(errno));
}

bool wants_colour() {
  const char* no_color = std::getenv("NO_COLOR");
  const char* term = std::getenv("TERM");
  if (no_color != nullptr && *no_color != '\0') return false;
  if (term != nullptr && std::string_view(term) == "dumb") return false;
  // Open MPI gives each process a terminal of its own, and writes what comes out of it into a file or pipe.
  return this_process().count == 0 && isatty(STDOUT_FILENO) == 1;
}

}  // namespace muster::cli
