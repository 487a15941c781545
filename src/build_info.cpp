#include "build_info.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "version.h"

namespace muster {
namespace {

using Json = nlohmann::ordered_json;

Json text_or_null(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

Json cuda_version(int version) {
  return version == 0 ? Json(nullptr) : Json(fmt::format("{}.{}", version / 1000, version % 1000 / 10));
}

Json to_json(const kernels::CudaInfo& cuda) {
  Json devices = Json::array();
  for (const kernels::GpuInfo& device : cuda.devices) {
    devices.push_back(
        {{"name", device.name}, {"compute_capability", device.compute_capability}, {"supported", device.supported}});
  }
  return {{"built_in", cuda.built_in},
          {"architectures", text_or_null(cuda.architectures)},
          {"runtime", cuda_version(cuda.runtime_version)},
          {"driver", cuda_version(cuda.driver_version)},
          {"devices", std::move(devices)}};
}

}  // namespace

BuildInfo build_info() {
  return {std::string(kVersion), kernels::cuda_info(), comm::nccl_info(), comm::mpi_info(), kernels::cpu_info()};
}

std::string build_info_json(const BuildInfo& info) {
  const Json json = {
      {"version", info.version},
      {"cuda", to_json(info.cuda)},
      {"nccl",
       {{"built_in", info.nccl.built_in},
        {"version", text_or_null(info.nccl.version)},
        {"missing", text_or_null(info.nccl.missing)}}},
      {"mpi", {{"built_in", info.mpi.built_in}, {"version", text_or_null(info.mpi.version)}}},
      {"cpu",
       {{"elementwise", info.cpu.elementwise}, {"blis", info.cpu.blis}, {"blis_version", info.cpu.blis_version}}}};
  return json.dump(2, ' ', false, Json::error_handler_t::replace);
}

}  // namespace muster
