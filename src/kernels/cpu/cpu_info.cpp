#include <blis.h>

#include "kernels/backend_info.h"
#include "kernels/cpu/elementwise.h"

namespace muster::kernels {

CpuInfo cpu_info() {
  return {cpu::best_elementwise().name, bli_arch_string(bli_arch_query_id()), bli_info_get_version_str()};
}

}  // namespace muster::kernels
