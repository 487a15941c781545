#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "compiled_architectures.h"
#include "kernels/architectures.h"
#include "kernels/cuda/gemm_sm90/gemm.h"
#include "kernels/cuda/gemm_sm90/gemm_kernel_sm90.cuh"
#include "kernels/cuda/newton_schulz/cuda_cublas.h"
#include "kernels/cuda/newton_schulz/gemm_with_remainder.h"
#include "kernels/cuda/runtime/cuda_check.h"

namespace muster::kernels::cuda {

namespace {

using EncodeTiled = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                                 const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                                 CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

// Looked up at run time: programs must start without a driver.
EncodeTiled encode_tiled() {
  static const EncodeTiled function = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found{};
    check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found),
          "cuTensorMapEncodeTiled");
    if (found != cudaDriverEntryPointSuccess) throw DeviceError("cuTensorMapEncodeTiled: the driver does not have it");
    return reinterpret_cast<EncodeTiled>(entry);
  }();
  return function;
}

bool is_shared(const Matrices& m) { return m.stride == 0; }

// A tensor map for boxes of `box_rows` rows of 64 elements. Outside a matrix, TMA loads zeros and stores nothing. A
// shared matrix is encoded as a batch of one, because a dimension's stride must not be 0.
CUtensorMap tensor_map(const Matrices& m, const Gemm& gemm, uint32_t box_rows) {
  CUtensorMap map;
  const cuuint64_t sizes[3] = {static_cast<cuuint64_t>(m.columns), static_cast<cuuint64_t>(m.rows),
                               static_cast<cuuint64_t>(is_shared(m) ? 1 : gemm.batch)};
  const int64_t stride = is_shared(m) ? m.rows * m.pitch : m.stride;
  const cuuint64_t strides[2] = {static_cast<cuuint64_t>(m.pitch * kElementBytes),
                                 static_cast<cuuint64_t>(stride * kElementBytes)};
  const cuuint32_t box[3] = {64, box_rows, 1};
  const cuuint32_t steps[3] = {1, 1, 1};
  const auto dtype = gemm.type == Half::kF16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  const CUresult result =
      encode_tiled()(&map, dtype, 3, m.data, sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                     CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    throw InvalidArgument("gemm: " + std::to_string(m.rows) + "x" + std::to_string(m.columns) + ", pitch " +
                          std::to_string(m.pitch) + ": cuTensorMapEncodeTiled refuses it");
  }
  return map;
}

StoreMaps store_maps(const Matrices& m, const Gemm& gemm) {
  return {.image = tensor_map(m, gemm, 64), .rows = tensor_map(m, gemm, 16)};
}

int multiprocessors() {
  int device = 0;
  int count = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device), "cudaDeviceGetAttribute");
  return count;
}

// Measured (docs/lab/kernels-history.md): large tiles win where power limits the device, small ones where there are too
// few tiles. The threshold of symmetric GEMMs without C was measured on GEMMs alone, not on whole steps. Remainders
// need a second epilogue buffer, which ping-pong alone has.
Schedule schedule_of(const Gemm& gemm) {
  if (gemm.d_remainder.data != nullptr) return Schedule::kPingPong;
  const bool gram = gemm.symmetric && gemm.c.data == nullptr;
  const bool large = std::min(gemm.d.rows, gemm.d.columns) >= (gram ? 4096 : 2048);
  return large ? Schedule::kCooperative : Schedule::kPingPong;
}

int tile_side(const Gemm& gemm) {
  return schedule_of(gemm) == Schedule::kCooperative ? BlockConfig<Schedule::kCooperative>::kTileSide
                                                     : BlockConfig<Schedule::kPingPong>::kTileSide;
}

TileGrid tile_grid_of(const Gemm& gemm) {
  return tile_grid(gemm.symmetric, tile_side(gemm), gemm.d.rows, gemm.d.columns);
}

int64_t inner_of(const Gemm& gemm) { return gemm.a_transposed ? gemm.a.rows : gemm.a.columns; }

template <typename T, size_t kIndex>
void launch(const Gemm& gemm, cudaStream_t stream) {
  constexpr GemmVariant kVariant = kGemmVariant<kIndex>;
  using Config = BlockConfig<kVariant.schedule>;
  auto* const kernel = gemm_kernel<T, kIndex>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Config::kSharedBytes), "gemm");
  const Matrices& second = kVariant.second == SecondOutput::kPlusIdentity ? gemm.d_and_identity
                           : kVariant.second == SecondOutput::kRemainder  ? gemm.d_remainder
                                                                          : gemm.d;
  const GemmTensorMaps maps{.a = tensor_map(gemm.a, gemm, kVariant.a == Major::kMN ? 64 : Config::kRows),
                            .b = tensor_map(gemm.b, gemm, kVariant.b == Major::kMN ? 64 : kSubtileColumns),
                            .d = store_maps(gemm.d, gemm),
                            .second = store_maps(second, gemm)};
  const GemmArguments arguments{
      .inner = static_cast<int>(inner_of(gemm)),
      .rows = static_cast<int>(gemm.d.rows),
      .columns = static_cast<int>(gemm.d.columns),
      .batch = static_cast<int>(gemm.batch),
      .b_is_a = gemm.a.data == gemm.b.data && gemm.a.pitch == gemm.b.pitch && gemm.a.stride == gemm.b.stride,
      .a_is_shared = is_shared(gemm.a),
      .b_is_shared = is_shared(gemm.b),
      .grid = tile_grid_of(gemm),
      .c_pitch = gemm.c.pitch,
      .c_stride = gemm.c.stride,
      .scalars_stride = gemm.scalars_stride,
      .c = static_cast<const uint16_t*>(gemm.c.data),
      .scalars = gemm.scalars,
      .identity = gemm.identity,
      .row_squares = gemm.row_squares};
  constexpr int kClusterBlocks = Config::kClusterBlocks;
  const int64_t clusters =
      std::min<int64_t>(multiprocessors() / kClusterBlocks, int64_t{arguments.grid.count} * gemm.batch);
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {kClusterBlocks, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(clusters * kClusterBlocks);
  config.blockDim = kBlockThreads;
  config.dynamicSmemBytes = Config::kSharedBytes;
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = kClusterBlocks > 1 ? 1 : 0;
  check(cudaLaunchKernelEx(&config, kernel, maps, arguments), "gemm");
}

GemmVariant variant_of(const Gemm& gemm) {
  return {.schedule = schedule_of(gemm),
          .symmetric = gemm.symmetric,
          .a = gemm.a_transposed ? Major::kMN : Major::kK,
          .b = gemm.b_transposed ? Major::kK : Major::kMN,
          .adds_c = gemm.c.data != nullptr,
          .second = gemm.d_and_identity.data != nullptr ? SecondOutput::kPlusIdentity
                    : gemm.row_squares != nullptr       ? SecondOutput::kRowSquares
                    : gemm.d_remainder.data != nullptr  ? SecondOutput::kRemainder
                                                        : SecondOutput::kNone};
}

// Throws if no kernel is compiled for what is asked for.
void require_variant(const Gemm& gemm) {
  const int seconds = (gemm.d_and_identity.data != nullptr ? 1 : 0) + (gemm.row_squares != nullptr ? 1 : 0) +
                      (gemm.d_remainder.data != nullptr ? 1 : 0);
  if (seconds <= 1 && std::ranges::find(kGemmVariants, variant_of(gemm)) != kGemmVariants.end()) return;
  throw InvalidArgument(std::string("gemm: no kernel for a ") + (gemm.symmetric ? "symmetric" : "general") +
                        " D = " + (gemm.a_transposed ? "A^T " : "A ") + (gemm.b_transposed ? "B^T" : "B") +
                        (gemm.c.data != nullptr ? " + C" : "") +
                        (gemm.d_and_identity.data != nullptr ? " with D + I" : "") +
                        (gemm.row_squares != nullptr ? " with row squares" : "") +
                        (gemm.d_remainder.data != nullptr ? " with a remainder" : ""));
}

template <typename T, size_t... kIndices>
void launch_variant(const Gemm& gemm, cudaStream_t stream, std::index_sequence<kIndices...>) {
  const GemmVariant variant = variant_of(gemm);
  ((variant == kGemmVariants[kIndices] ? launch<T, kIndices>(gemm, stream) : void()), ...);
}

template <typename T>
void launch(const Gemm& gemm, cudaStream_t stream) {
  launch_variant<T>(gemm, stream, std::make_index_sequence<kGemmVariants.size()>());
}

// Copies what is below the diagonal to above it. `d` has 16-bit elements of any type.
__global__ void mirror_kernel(uint16_t* d, int n, int64_t pitch, int64_t stride) {
  uint16_t* const matrix = d + blockIdx.z * stride;
  const int row = static_cast<int>(blockIdx.y) * 16 + static_cast<int>(threadIdx.y);
  const int column = static_cast<int>(blockIdx.x) * 16 + static_cast<int>(threadIdx.x);
  if (row < column && column < n) matrix[row * pitch + column] = matrix[column * pitch + row];
}

void mirror(const Gemm& gemm, cudaStream_t stream) {
  const auto tiles = static_cast<unsigned>((gemm.d.rows + 15) / 16);
  mirror_kernel<<<dim3(tiles, tiles, static_cast<unsigned>(gemm.batch)), dim3(16, 16), 0, stream>>>(
      static_cast<uint16_t*>(gemm.d.data), static_cast<int>(gemm.d.rows), gemm.d.pitch, gemm.d.stride);
}

}  // namespace

bool gemm_available(int device) {
  int major = 0;
  int minor = 0;
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "cudaDeviceGetAttribute");
  check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), "cudaDeviceGetAttribute");
  return major == 9 && minor == 0 && has_sm90a(kCompiledArchitectures);
}

void multiply(const Gemm& gemm, LaunchQueue& queue, Cublas* cublas) {
  if (gemm.batch == 0 || gemm.d.rows == 0 || gemm.d.columns == 0) return;
  const auto require = [&](const char* name, const Matrices& m, int64_t rows, int64_t columns) {
    const bool aligned = reinterpret_cast<uintptr_t>(m.data) % 16 == 0 && m.pitch % 8 == 0 && m.stride % 8 == 0;
    if (m.rows == rows && m.columns == columns && aligned && m.pitch >= columns) return;
    throw InvalidArgument(std::string("gemm: ") + name + " is " + std::to_string(m.rows) + "x" +
                          std::to_string(m.columns) + ", pitch " + std::to_string(m.pitch) + ", expected " +
                          std::to_string(rows) + "x" + std::to_string(columns) + " on 16 bytes");
  };
  const int64_t inner = inner_of(gemm);
  const bool remainder = gemm.d_remainder.data != nullptr;
  require("A", gemm.a, gemm.a_transposed ? inner : gemm.d.rows, gemm.a_transposed ? gemm.d.rows : inner);
  require("B", gemm.b, gemm.b_transposed ? gemm.d.columns : inner, gemm.b_transposed ? inner : gemm.d.columns);
  require("D", gemm.d, gemm.d.rows, gemm.symmetric ? gemm.d.rows : gemm.d.columns);
  if (gemm.c.data != nullptr) require("C", gemm.c, gemm.d.rows, gemm.d.columns);
  if (gemm.d_and_identity.data != nullptr) require("D + I", gemm.d_and_identity, gemm.d.rows, gemm.d.columns);
  if (remainder) require("the remainder", gemm.d_remainder, gemm.d.rows, gemm.d.columns);
  for (const Matrices* m : {&gemm.d, &gemm.d_and_identity, &gemm.d_remainder}) {
    if (m->data == nullptr || !is_shared(*m) || gemm.batch == 1) continue;
    throw InvalidArgument("gemm: an output of stride 0 for a batch of " + std::to_string(gemm.batch));
  }
  const bool extra = gemm.d_and_identity.data != nullptr || gemm.row_squares != nullptr;
  if (cublas != nullptr && extra) throw InvalidArgument("gemm: cuBLAS writes D alone");
  if (cublas == nullptr || remainder) require_variant(gemm);
  const int64_t kind = static_cast<int64_t>(gemm.type) | (gemm.a_transposed ? 2 : 0) | (gemm.b_transposed ? 4 : 0) |
                       (gemm.symmetric ? 8 : 0) | (cublas != nullptr ? 16 : 0);
  std::array<int64_t, 30> places{};
  auto* place = places.begin();
  for (const Matrices* m : {&gemm.a, &gemm.b, &gemm.c, &gemm.d, &gemm.d_and_identity, &gemm.d_remainder}) {
    for (const int64_t n : {reinterpret_cast<int64_t>(m->data), m->rows, m->columns, m->pitch, m->stride}) *place++ = n;
  }
  queue.add_to_key(places);
  queue.launch("gemm",
               {kind, gemm.batch, reinterpret_cast<int64_t>(gemm.scalars), gemm.scalars_stride,
                reinterpret_cast<int64_t>(gemm.identity), reinterpret_cast<int64_t>(gemm.row_squares)},
               [&](cudaStream_t stream) {
                 if (cublas != nullptr && remainder) return multiply_with_remainder(gemm, stream);
                 if (cublas != nullptr) {
                   cublas->multiply(gemm, stream);
                   if (gemm.symmetric) mirror(gemm, stream);
                   return;
                 }
                 gemm.type == Half::kF16 ? launch<__half>(gemm, stream) : launch<__nv_bfloat16>(gemm, stream);
               });
}

double flops(const Gemm& gemm) {
  const int64_t inner = inner_of(gemm);
  const int64_t executed = int64_t{tile_side(gemm)} * tile_side(gemm) * tile_grid_of(gemm).count;
  return 2.0 * static_cast<double>(executed) * static_cast<double>(inner) * static_cast<double>(gemm.batch);
}

}  // namespace muster::kernels::cuda
