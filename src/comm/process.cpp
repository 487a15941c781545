#include "comm/process.h"

#include <cerrno>
#include <fstream>
#include <functional>
#include <signal.h>
#include <string>
#include <unistd.h>

#include <sys/stat.h>

namespace muster::comm {

ProcessId this_process() {
  std::string boot;
  struct stat space = {};
  if (!std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot)) return {};
  if (stat("/proc/self/ns/pid", &space) != 0) return {};
  ProcessId id;
  id.boot = std::hash<std::string>()(boot) | 1;
  id.namespace_ = space.st_ino;
  id.process = getpid();
  return id;
}

bool is_gone(const ProcessId& other, const ProcessId& self) {
  if (other.boot == 0 || other.boot != self.boot || other.namespace_ != self.namespace_) return false;
  return kill(static_cast<pid_t>(other.process), 0) != 0 && errno == ESRCH;
}

}  // namespace muster::comm
