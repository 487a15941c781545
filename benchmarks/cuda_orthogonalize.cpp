// Orthogonalization on the GPU for the shapes of workloads A, B and C: one captured graph, 16-bit in and f32 out.
#include <algorithm>
#include <cstdio>
#include <cuda_runtime_api.h>
#include <string>
#include <vector>

#include "kernels/cuda/check.h"
#include "kernels/cuda/orthogonalize.h"

namespace muster::kernels::cuda {
namespace {

constexpr const char* kSet = "polar_express_safe";

struct Shape {
  const char* workload;
  int64_t count;
  MatrixShape shape;
};

double milliseconds(const Shape& s) {
  const auto elements = static_cast<size_t>(s.shape.rows * s.shape.columns);
  Orthogonalizer orthogonalizer(0);
  std::vector<uint16_t> values(elements);
  for (size_t i = 0; i < elements; ++i) {
    values[i] = static_cast<uint16_t>(0x3c00 + i * 2654435761 % 512 + (i * 40503 % 2 << 15));  // +-0.008 to 0.03
  }
  char* memory = nullptr;
  const size_t count = static_cast<size_t>(s.count);
  const int64_t workspace = orthogonalizer.workspace(s.shape, s.count);
  const size_t bytes = count * elements * 2 + static_cast<size_t>(workspace);
  check(cudaMalloc(reinterpret_cast<void**>(&memory), bytes), "cudaMalloc");
  std::vector<MatrixPair> pairs;
  for (size_t i = 0; i < count; ++i) {
    char* const at = memory + static_cast<size_t>(workspace) + i * elements * 2;
    check(cudaMemcpy(at, values.data(), elements * 2, cudaMemcpyHostToDevice), "cudaMemcpy");
    pairs.push_back({at, at});
  }
  OrthogonalizeOptions options;
  options.coefficients = coefficients(kSet);
  options.input = options.output = Dtype::kBf16;
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t step = nullptr;
  check(cudaStreamCreate(&stream), "stream");
  orthogonalizer.run(options, s.shape, pairs, {memory, workspace}, stream);
  check(cudaStreamSynchronize(stream), "run");
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  orthogonalizer.run(options, s.shape, pairs, {memory, workspace}, stream);
  check(cudaStreamEndCapture(stream, &graph), "capture");
  check(cudaGraphInstantiate(&step, graph, 0), "graph");
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  check(cudaEventCreate(&begin), "event");
  check(cudaEventCreate(&end), "event");
  std::vector<float> times;
  for (int i = 0; i < 12; ++i) {
    check(cudaEventRecord(begin, stream), "record");
    check(cudaGraphLaunch(step, stream), "launch");
    check(cudaEventRecord(end, stream), "record");
    check(cudaEventSynchronize(end), "wait");
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin, end), "time");
    times.push_back(ms);
  }
  std::sort(times.begin(), times.end());
  cudaGraphExecDestroy(step);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
  cudaFree(memory);
  return static_cast<double>(times[times.size() / 2]);
}

void report() {
  const Shape shapes[] = {{"A", 48, {768, 768}},   {"A", 12, {3072, 768}},   {"A", 12, {768, 3072}},
                          {"B", 96, {2048, 2048}}, {"B", 24, {8192, 2048}},  {"B", 24, {2048, 8192}},
                          {"C", 32, {4096, 4096}}, {"C", 16, {11008, 4096}}, {"C", 8, {4096, 11008}}};
  std::printf("| workload | batch | form | ms | TFLOP/s executed |\n|---|---|---|---|---|\n");
  for (const Shape& s : shapes) {
    const Form form = form_of(s.shape, coefficients(kSet));
    const double ms = milliseconds(s);
    const double flop = orthogonalize_flops(form, s.shape, 5) * static_cast<double>(s.count);
    std::printf("| %s | %lldx%lldx%lld | %s | %.3f | %.0f |\n", s.workload, static_cast<long long>(s.count),
                static_cast<long long>(s.shape.rows), static_cast<long long>(s.shape.columns),
                form == Form::kGram ? "Gram, fp16" : "standard, bf16", ms, flop / ms / 1e9);
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace muster::kernels::cuda

int main() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
    std::puts("skipped: no GPU");
    return 0;
  }
  muster::kernels::cuda::report();
}
