#include <algorithm>
#include <array>
#include <string>

#include "compiled_architectures.h"
#include "kernels/architectures.h"
#include "kernels/cuda/gemm_sm90/gemm.h"
#include "kernels/cuda/gemm_sm90/gemm_kernel.cuh"
#include "kernels/cuda/newton_schulz/cuda_cublas.h"
#include "kernels/cuda/runtime/cuda_check.h"

namespace muster::kernels::cuda {

namespace {

using EncodeTiled = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                                 const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                                 CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

// From the driver, which a program must be able to do without.
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

// Boxes of `box_rows` rows of 64 elements. What is outside the matrix reads as zero and is not written.
CUtensorMap boxes_of(const Matrices& m, Half type, int64_t batch, uint32_t box_rows) {
  CUtensorMap map;
  const cuuint64_t sizes[3] = {static_cast<cuuint64_t>(m.columns), static_cast<cuuint64_t>(m.rows),
                               static_cast<cuuint64_t>(batch)};
  const cuuint64_t strides[2] = {static_cast<cuuint64_t>(m.pitch * kHalfBytes),
                                 static_cast<cuuint64_t>(m.stride * kHalfBytes)};
  const cuuint32_t box[3] = {64, box_rows, 1};
  const cuuint32_t steps[3] = {1, 1, 1};
  const auto dtype = type == Half::kF16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  const CUresult result =
      encode_tiled()(&map, dtype, 3, m.data, sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                     CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    throw InvalidArgument("product: " + std::to_string(m.rows) + "x" + std::to_string(m.columns) + ", pitch " +
                          std::to_string(m.pitch) + ": the copy engine cannot address it");
  }
  return map;
}

int multiprocessors() {
  int device = 0;
  int count = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device), "cudaDeviceGetAttribute");
  return count;
}

// By measurement (docs/kernels.md): large tiles where the device runs out of power, small ones where it runs out of
// them. Products without C below 4096 are by their own rate, not by that of whole steps.
Work work_of(const Product& p) {
  const bool alone = p.symmetric && p.c.data == nullptr;
  return std::min(p.d.rows, p.d.columns) >= (alone ? 4096 : 2048) ? Work::kTogether : Work::kInTurns;
}

int tile_side(const Product& p) {
  return work_of(p) == Work::kTogether ? Ring<Work::kTogether>::kSide : Ring<Work::kInTurns>::kSide;
}

Tiles tiles_in(const Product& p) { return tiles_of(p.symmetric, tile_side(p), p.d.rows, p.d.columns); }

template <typename T, Work kWork, bool kSymmetric, bool kAcrossA, bool kAcrossB, bool kBeta, Extra kExtra>
void launch_as(const Product& p, cudaStream_t stream) {
  auto* const kernel = product_kernel<T, kWork, kSymmetric, kAcrossA, kAcrossB, kBeta, kExtra>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Ring<kWork>::kSharedBytes),
        "product");
  Shape shape{};
  shape.inner = static_cast<int>(p.a_transposed ? p.a.rows : p.a.columns);
  shape.rows = static_cast<int>(p.d.rows);
  shape.columns = static_cast<int>(p.d.columns);
  shape.batch = static_cast<int>(p.batch);
  shape.same = p.a.data == p.b.data && p.a.pitch == p.b.pitch && p.a.stride == p.b.stride;
  shape.tiles = tiles_in(p);
  shape.c_pitch = p.c.pitch;
  shape.c_stride = p.c.stride;
  shape.scalars_stride = p.scalars_stride;
  const Matrices& also = kExtra == Extra::kIdentity ? p.d_and_identity : p.d;
  const CUtensorMap a = boxes_of(p.a, p.type, p.batch, kAcrossA ? 64 : Ring<kWork>::kRows);
  const CUtensorMap b = boxes_of(p.b, p.type, p.batch, kAcrossB ? 64 : kStrip);
  const CUtensorMap d = boxes_of(p.d, p.type, p.batch, 64);
  const CUtensorMap d_strip = boxes_of(p.d, p.type, p.batch, 16);
  const CUtensorMap extra = boxes_of(also, p.type, p.batch, 64);
  const CUtensorMap extra_strip = boxes_of(also, p.type, p.batch, 16);
  constexpr int kCluster = Ring<kWork>::kCluster;
  const int64_t clusters = std::min<int64_t>(multiprocessors() / kCluster, shape.tiles.count * p.batch);
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {kCluster, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(clusters * kCluster);
  config.blockDim = kThreads;
  config.dynamicSmemBytes = Ring<kWork>::kSharedBytes;
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = kCluster > 1 ? 1 : 0;
  check(cudaLaunchKernelEx(&config, kernel, a, b, d, d_strip, extra, extra_strip, static_cast<const T*>(p.c.data),
                           p.scalars, shape, ExtraOutput{p.identity, p.row_squares}),
        "product");
}

template <typename T, bool kSymmetric, bool kAcrossA, bool kAcrossB, bool kBeta, Extra kExtra>
void launch(const Product& p, cudaStream_t stream) {
  if (work_of(p) == Work::kTogether) {
    launch_as<T, Work::kTogether, kSymmetric, kAcrossA, kAcrossB, kBeta, kExtra>(p, stream);
  } else {
    launch_as<T, Work::kInTurns, kSymmetric, kAcrossA, kAcrossB, kBeta, kExtra>(p, stream);
  }
}

template <typename T, bool kAcrossB, Extra kExtra>
void launch_general(const Product& p, cudaStream_t stream) {
  if (p.c.data != nullptr) return launch<T, false, false, kAcrossB, true, kExtra>(p, stream);
  launch<T, false, false, kAcrossB, false, kExtra>(p, stream);
}

template <typename T>
void launch(const Product& p, cudaStream_t stream) {
  // Along the inner dim lie A as it is and B transposed.
  const bool beta = p.c.data != nullptr;
  const bool across_b = !p.b_transposed;
  const bool identity = p.d_and_identity.data != nullptr;
  const bool squares = p.row_squares != nullptr;
  if (identity && !(p.symmetric && beta)) throw InvalidArgument("product: an identity is for symmetric ones with C");
  if (p.symmetric) {
    if (squares) throw InvalidArgument("product: squares of the rows of a symmetric one");
    if (p.a_transposed != across_b) throw InvalidArgument("product: a symmetric one of operands that lie differently");
    if (p.a_transposed) {
      if (beta) throw InvalidArgument("product: a symmetric one of transposed operands with C");
      return launch<T, true, true, true, false, Extra::kNone>(p, stream);
    }
    if (identity) return launch<T, true, false, false, true, Extra::kIdentity>(p, stream);
    return beta ? launch<T, true, false, false, true, Extra::kNone>(p, stream)
                : launch<T, true, false, false, false, Extra::kNone>(p, stream);
  }
  if (p.a_transposed) throw InvalidArgument("product: a general one with A transposed");
  if (across_b) {
    return squares ? launch_general<T, true, Extra::kSquares>(p, stream)
                   : launch_general<T, true, Extra::kNone>(p, stream);
  }
  return squares ? launch_general<T, false, Extra::kSquares>(p, stream)
                 : launch_general<T, false, Extra::kNone>(p, stream);
}

// Above the diagonal what is below it. Types do not matter.
__global__ void mirror_kernel(uint16_t* d, int n, int64_t pitch, int64_t stride) {
  uint16_t* const matrix = d + blockIdx.z * stride;
  const int row = static_cast<int>(blockIdx.y) * 16 + static_cast<int>(threadIdx.y);
  const int column = static_cast<int>(blockIdx.x) * 16 + static_cast<int>(threadIdx.x);
  if (row < column && column < n) matrix[row * pitch + column] = matrix[column * pitch + row];
}

void mirror(const Product& p, cudaStream_t stream) {
  const auto tiles = static_cast<unsigned>((p.d.rows + 15) / 16);
  mirror_kernel<<<dim3(tiles, tiles, static_cast<unsigned>(p.batch)), dim3(16, 16), 0, stream>>>(
      static_cast<uint16_t*>(p.d.data), static_cast<int>(p.d.rows), p.d.pitch, p.d.stride);
}

}  // namespace

bool products_available(int device) {
  int major = 0;
  int minor = 0;
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "cudaDeviceGetAttribute");
  check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), "cudaDeviceGetAttribute");
  return major == 9 && minor == 0 && has_sm90a(kCompiledArchitectures);
}

void multiply(const Product& p, LaunchQueue& queue, Cublas* instead) {
  if (p.batch == 0 || p.d.rows == 0 || p.d.columns == 0) return;
  const auto require = [&](const char* name, const Matrices& m, int64_t rows, int64_t columns) {
    const bool aligned = reinterpret_cast<uintptr_t>(m.data) % 16 == 0 && m.pitch % 8 == 0 && m.stride % 8 == 0;
    if (m.rows == rows && m.columns == columns && aligned && m.pitch >= columns) return;
    throw InvalidArgument(std::string("product: ") + name + " is " + std::to_string(m.rows) + "x" +
                          std::to_string(m.columns) + ", pitch " + std::to_string(m.pitch) + ", expected " +
                          std::to_string(rows) + "x" + std::to_string(columns) + " on 16 bytes");
  };
  const int64_t inner = p.a_transposed ? p.a.rows : p.a.columns;
  require("A", p.a, p.a_transposed ? inner : p.d.rows, p.a_transposed ? p.d.rows : inner);
  require("B", p.b, p.b_transposed ? p.d.columns : inner, p.b_transposed ? inner : p.d.columns);
  require("D", p.d, p.d.rows, p.symmetric ? p.d.rows : p.d.columns);
  if (p.c.data != nullptr) require("C", p.c, p.d.rows, p.d.columns);
  if (p.d_and_identity.data != nullptr) require("D + I", p.d_and_identity, p.d.rows, p.d.columns);
  const bool extra = p.d_and_identity.data != nullptr || p.row_squares != nullptr;
  if (instead != nullptr && extra) throw InvalidArgument("product: cuBLAS writes D alone");
  const int64_t kind = static_cast<int64_t>(p.type) | (p.a_transposed ? 2 : 0) | (p.b_transposed ? 4 : 0) |
                       (p.symmetric ? 8 : 0) | (instead != nullptr ? 16 : 0);
  std::array<int64_t, 25> places{};
  auto* place = places.begin();
  for (const Matrices* m : {&p.a, &p.b, &p.c, &p.d, &p.d_and_identity}) {
    for (const int64_t n : {reinterpret_cast<int64_t>(m->data), m->rows, m->columns, m->pitch, m->stride}) *place++ = n;
  }
  queue.add_to_key(places);
  queue.launch("product",
               {kind, p.batch, reinterpret_cast<int64_t>(p.scalars), p.scalars_stride,
                reinterpret_cast<int64_t>(p.identity), reinterpret_cast<int64_t>(p.row_squares)},
               [&](cudaStream_t stream) {
                 if (instead != nullptr) {
                   instead->multiply(p, stream);
                   if (p.symmetric) mirror(p, stream);
                   return;
                 }
                 p.type == Half::kF16 ? launch<__half>(p, stream) : launch<__nv_bfloat16>(p, stream);
               });
}

double flops(const Product& p) {
  const int64_t inner = p.a_transposed ? p.a.rows : p.a.columns;
  const int64_t executed = int64_t{tile_side(p)} * tile_side(p) * tiles_in(p).count;
  return 2.0 * static_cast<double>(executed) * static_cast<double>(inner) * static_cast<double>(p.batch);
}

}  // namespace muster::kernels::cuda
