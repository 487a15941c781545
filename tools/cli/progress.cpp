#include "progress.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <unistd.h>

#include <fmt/format.h>
#include <sys/ioctl.h>

#include "plan_text/text.h"
#include "ranks.h"

namespace muster::cli {
namespace {

constexpr int kCells = 28;
constexpr size_t kFixedColumns = 46;  // of a line without what is being done

size_t terminal_columns() {
  winsize size{};
  const bool known = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return known ? size.ws_col : 80;
}

}  // namespace

Progress::Progress(Show show) : start_(std::chrono::steady_clock::now()) {
  const char* term = std::getenv("TERM");
  const bool dumb = term != nullptr && std::string_view(term) == "dumb";
  // Under mpirun a terminal may be one that mpirun made, in front of a file or pipe.
  const bool terminal = this_process().count == 0 && isatty(STDERR_FILENO) == 1;
  shows_ = show == Show::kIfTerminal && terminal && !dumb;
}

Progress::~Progress() { clear(); }

void Progress::update(double done, std::string_view what) {
  if (!shows_) return;
  const int full = static_cast<int>(std::lround(std::clamp(done, 0.0, 1.0) * kCells));
  const auto elapsed = std::chrono::duration_cast<std::chrono::seconds>(std::chrono::steady_clock::now() - start_);
  const size_t columns = std::max(terminal_columns(), kFixedColumns + 8);
  const std::string line = fmt::format("{}{} {:>3.0f} % {:>4} s  {}", plan_text::repeated("█", full),
                                       plan_text::repeated("░", kCells - full), 100 * done, elapsed.count(),
                                       plan_text::truncated(plan_text::printable(what), columns - kFixedColumns));
  if (line == last_) return;
  last_ = line;
  std::fputs(("\r\x1b[K" + line).c_str(), stderr);
  std::fflush(stderr);
  drawn_ = true;
}

void Progress::clear() {
  if (!drawn_) return;
  std::fputs("\r\x1b[K", stderr);
  std::fflush(stderr);
  drawn_ = false;
  last_.clear();
}

}  // namespace muster::cli
