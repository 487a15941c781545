#include "info_command.h"

#include <memory>

#include <fmt/format.h>

#include "arguments.h"
#include "build_info.h"
#include "output.h"

namespace muster::cli {
namespace {

std::string version_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

std::string describe(const kernels::CudaInfo& cuda) {
  if (!cuda.built_in) return "not built in";
  std::string text = fmt::format("{}, compiled for {}", version_text(cuda.runtime_version), cuda.architectures);
  if (cuda.driver_version == 0) return text + "; no driver";
  text += fmt::format("; the driver supports {}", version_text(cuda.driver_version));
  for (const kernels::GpuInfo& gpu : cuda.devices) {
    text += fmt::format("; {} (compute capability {}{})", gpu.name, gpu.compute_capability,
                        gpu.supported ? "" : ", not compiled for");
  }
  return cuda.devices.empty() ? text + "; no GPU" : text;
}

std::string describe(const comm::NcclInfo& nccl) {
  if (!nccl.built_in) return "not built in";
  if (!nccl.missing.empty()) return "built in; no library: " + nccl.missing;
  return nccl.version;
}

std::string describe(const comm::MpiInfo& mpi) { return mpi.built_in ? mpi.version : "not built in"; }

std::string describe(const kernels::CpuInfo& cpu) {
  return fmt::format("{} kernels, BLIS {} for {}", cpu.elementwise, cpu.blis_version, cpu.blis);
}

std::string to_table(const BuildInfo& info) {
  return fmt::format("muster  {}\nCUDA    {}\nNCCL    {}\nMPI     {}\nCPU     {}\n", info.version, describe(info.cuda),
                     describe(info.nccl), describe(info.mpi), describe(info.cpu));
}

}  // namespace

void add_info_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("info", "Print what this build contains and what it finds on this machine");
  auto json = std::make_shared<bool>(false);
  add_json_flag(*command, *json);
  command->callback([json] {
    const BuildInfo info = build_info();
    print(*json ? build_info_json(info) + "\n" : to_table(info));
  });
}

}  // namespace muster::cli
