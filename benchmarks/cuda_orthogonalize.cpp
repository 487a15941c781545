// Times orthogonalization on the GPU for the shapes of workloads A, B and C: captured steps, two lanes, bf16 in place.
// Then times symmetric products alone, compared with cuBLAS. Arguments: none, or one of `orthogonalize` and `products`;
// after `orthogonalize` the size of sub-batches (0: the best) and the name of a set of coefficients. Or `file`, the
// name of a file of bf16 matrices of one shape, which it orthogonalizes in place, their number, rows and columns, and
// the name of a set of coefficients.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda_runtime_api.h>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/cuda/newton_schulz/cuda_cublas.h"
#include "kernels/cuda/newton_schulz/newton_schulz_form.h"
#include "kernels/cuda/newton_schulz/orthogonalizer.h"
#include "kernels/cuda/runtime/cuda_check.h"

namespace muster::kernels::cuda {
namespace {

constexpr int kTimes = 12;

struct Memory {
  explicit Memory(int64_t bytes) { check(cudaMalloc(&data, static_cast<size_t>(bytes)), "cudaMalloc"); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() { cudaFree(data); }
  void* data = nullptr;
};

// Random signs, and magnitudes from 0.008 to 0.03 (bf16) or 0.0001 to 0.0002 (fp16).
void fill(void* device, int64_t count, Half type) {
  std::vector<uint16_t> values(static_cast<size_t>(count));
  const size_t base = type == Half::kBf16 ? 0x3c00 : 0x0800;
  uint64_t state = 1;
  for (uint16_t& value : values) {
    state = state * 6364136223846793005 + 1442695040888963407;
    value = static_cast<uint16_t>(base + (state >> 33) % 512 + (state >> 63 << 15));
  }
  check(cudaMemcpy(device, values.data(), values.size() * 2, cudaMemcpyHostToDevice), "cudaMemcpy");
}

// Median milliseconds of f on a stream.
template <typename F>
double milliseconds(cudaStream_t stream, const F& f, int times = kTimes + 3) {
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  check(cudaEventCreate(&begin), "event");
  check(cudaEventCreate(&end), "event");
  std::vector<float> all;
  for (int i = 0; i < times; ++i) {
    check(cudaEventRecord(begin, stream), "record");
    f();
    check(cudaEventRecord(end, stream), "record");
    check(cudaEventSynchronize(end), "wait");
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin, end), "time");
    if (i >= 3 || times == 1) all.push_back(ms);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  std::sort(all.begin(), all.end());
  return static_cast<double>(all[all.size() / 2]);
}

// Matrices of one shape, to be orthogonalized in sub-batches.
struct Job {
  Job(int64_t count, MatrixShape of, bool normuon, const Coefficients& set) : shape(of) {
    const int64_t elements = shape.rows * shape.columns;
    const int64_t lines = std::max(shape.rows, shape.columns);
    options.coefficients = set;
    if (normuon) options.normuon = NorMuonOptions{shape.rows >= shape.columns ? LineAxis::kRows : LineAxis::kColumns};
    memory = std::make_unique<Memory>(count * elements * 2);
    variances = std::make_unique<Memory>(count * lines * 4);
    check(cudaMemset(variances->data, 0, static_cast<size_t>(count * lines * 4)), "cudaMemset");
    for (int64_t m = 0; m < count; ++m) {
      auto* const at = static_cast<uint16_t*>(memory->data) + m * elements;
      if (m == 0) {
        fill(at, elements, Half::kBf16);
      } else {
        check(cudaMemcpy(at, memory->data, static_cast<size_t>(elements * 2), cudaMemcpyDeviceToDevice), "cudaMemcpy");
      }
      matrices.push_back({at, static_cast<float*>(variances->data) + m * lines, nullptr});
    }
  }
  MatrixShape shape;
  OrthogonalizeOptions options;
  std::unique_ptr<Memory> memory;
  std::unique_ptr<Memory> variances;
  std::vector<UpdateMatrix> matrices;
};

struct Orthogonalizing {
  double ms = 0;
  int64_t launches = 0;
  int64_t scratch = 0;  // bytes, of both lanes
};

Orthogonalizing orthogonalize(const std::vector<std::unique_ptr<Job>>& jobs, int64_t together, int times = kTimes + 3) {
  int multiprocessors = 0;
  check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0), "device");
  LaunchQueue queue(nullptr);
  Orthogonalizer orthogonalizer(0);
  const auto batch_of = [&](const Job& job) {
    return std::min(together > 0 ? together : best_batch_size(job.shape, multiprocessors),
                    static_cast<int64_t>(job.matrices.size()));
  };
  int64_t bytes = 0;
  for (const auto& job : jobs)
    bytes = std::max(bytes, orthogonalizer.workspace(job->shape, batch_of(*job), job->options));
  const Memory workspaces(bytes * LaunchQueue::kLanes);
  check(cudaDeviceSynchronize(), "jobs");
  const double ms = milliseconds(
      queue.main(),
      [&] {
        do {
          queue.begin_step(true);
          int number = 0;
          for (const auto& job : jobs) {
            const auto each = static_cast<size_t>(batch_of(*job));
            for (size_t begin = 0; begin < job->matrices.size(); begin += each, ++number) {
              const int lane = number % LaunchQueue::kLanes;
              const auto part = std::span<const UpdateMatrix>(job->matrices)
                                    .subspan(begin, std::min(each, job->matrices.size() - begin));
              queue.lane(lane);
              orthogonalizer.run(
                  {job->options, job->shape, part, {static_cast<char*>(workspaces.data) + lane * bytes, bytes}}, queue);
            }
          }
          queue.join_lanes();
        } while (!queue.end_step());
      },
      times);
  return {ms, queue.launches(), bytes * LaunchQueue::kLanes};
}

struct Shape {
  int64_t count;
  MatrixShape shape;
};

void report_orthogonalizing(int64_t together, const Coefficients& set) {
  const std::pair<const char*, std::vector<Shape>> workloads[] = {
      {"A", {{48, {768, 768}}, {12, {3072, 768}}, {12, {768, 3072}}}},
      {"B", {{96, {2048, 2048}}, {24, {8192, 2048}}, {24, {2048, 8192}}}},
      {"C", {{32, {4096, 4096}}, {16, {11008, 4096}}, {8, {4096, 11008}}}}};
  std::printf("| workload | batch | form | ms | TFLOP/s executed | with NorMuon, ms | launches | scratch, MiB |\n");
  std::printf("|---|---|---|---|---|---|---|---|\n");
  for (const auto& [name, shapes] : workloads) {
    double flop_of_all = 0;
    for (size_t i = 0; i <= shapes.size(); ++i) {
      const bool all = i == shapes.size();
      Orthogonalizing results[2];
      std::string what = "all";
      std::string form = "both";
      double flop = flop_of_all;
      for (const bool normuon : {false, true}) {
        std::vector<std::unique_ptr<Job>> jobs;
        for (size_t j = all ? 0 : i; j < (all ? shapes.size() : i + 1); ++j) {
          jobs.push_back(std::make_unique<Job>(shapes[j].count, shapes[j].shape, normuon, set));
        }
        results[normuon ? 1 : 0] = orthogonalize(jobs, together);
      }
      if (!all) {
        const Shape& s = shapes[i];
        const Form is = form_of(s.shape, set);
        flop = newton_schulz_flops(is, s.shape, set) * static_cast<double>(s.count);
        flop_of_all += flop;
        form = is == Form::kGram ? "Gram, fp16" : "standard, bf16";
        what = std::to_string(s.count) + "x" + std::to_string(s.shape.rows) + "x" + std::to_string(s.shape.columns);
      }
      std::printf("| %s | %s | %s | %.3f | %.0f | %.3f | %lld | %.0f |\n", name, what.c_str(), form.c_str(),
                  results[0].ms, flop / results[0].ms / 1e9, results[1].ms, static_cast<long long>(results[1].launches),
                  static_cast<double>(results[1].scratch) / 0x1p20);
      std::fflush(stdout);
    }
  }
}

void report_products() {
  std::printf(
      "| X X^T | ours, ms | TFLOP/s executed | cuBLAS, ms | TFLOP/s executed | ratio |\n|---|---|---|---|---|---|\n");
  for (const Half type : {Half::kBf16, Half::kF16}) {
    for (const auto& [n, batch] :
         {std::pair<int64_t, int64_t>{768, 48}, {1024, 48}, {2048, 24}, {4096, 8}, {7168, 3}}) {
      const Memory x(batch * n * n * 2);
      const Memory d(batch * n * n * 2);
      for (int64_t m = 0; m < batch; ++m) fill(static_cast<uint16_t*>(x.data) + m * n * n, n * n, type);
      LaunchQueue queue(nullptr);
      Gemm p;
      p.type = type;
      p.a = p.b = {x.data, n, n, n, n * n};
      p.d = {d.data, n, n, n, n * n};
      p.b_transposed = true;
      p.symmetric = true;
      p.batch = batch;
      const Memory scalars(sizeof(Scalars));
      const Scalars one{1, 0};
      check(cudaMemcpy(scalars.data, &one, sizeof(one), cudaMemcpyHostToDevice), "cudaMemcpy");
      p.scalars = static_cast<const Scalars*>(scalars.data);
      check(cudaDeviceSynchronize(), "operands");
      const auto each = [&](const auto& f) {
        const auto several = [&] {
          for (int i = 0; i < kTimes; ++i) f();
        };
        return milliseconds(queue.main(), several) / kTimes;
      };
      const double ours = each([&] { multiply(p, queue); });
      std::printf("| %s %lldx%lldx%lld | %.3f | %.0f |", type == Half::kBf16 ? "bf16" : "fp16",
                  static_cast<long long>(batch), static_cast<long long>(n), static_cast<long long>(n), ours,
                  flops(p) / ours / 1e9);
      if (Cublas::available()) {
        Cublas cublas;
        const double theirs = each([&] { cublas.multiply_batched(p, queue.main()); });
        const double flop = 2.0 * static_cast<double>(batch * n * n * n);
        std::printf(" %.3f | %.0f | %.2f |\n", theirs, flop / theirs / 1e9, theirs / ours);
      } else {
        std::printf(" not here | | |\n");
      }
      std::fflush(stdout);
    }
  }
}

// For whoever wants to compare results.
int orthogonalize_file(const char* name, int64_t count, MatrixShape shape, const char* set) {
  std::vector<std::unique_ptr<Job>> jobs;
  jobs.push_back(std::make_unique<Job>(count, shape, false, coefficients(set)));
  std::vector<char> bytes(static_cast<size_t>(count * shape.rows * shape.columns * 2));
  std::fstream file(name, std::ios::in | std::ios::out | std::ios::binary);
  if (!file.read(bytes.data(), std::ssize(bytes))) {
    std::fprintf(stderr, "%s: cannot read %zu bytes\n", name, bytes.size());
    return 1;
  }
  check(cudaMemcpy(jobs[0]->memory->data, bytes.data(), bytes.size(), cudaMemcpyHostToDevice), "cudaMemcpy");
  orthogonalize(jobs, 0, 1);
  check(cudaMemcpy(bytes.data(), jobs[0]->memory->data, bytes.size(), cudaMemcpyDeviceToHost), "cudaMemcpy");
  file.seekp(0);
  return file.write(bytes.data(), std::ssize(bytes)).flush() ? 0 : 1;
}

}  // namespace
}  // namespace muster::kernels::cuda

int main(int argc, char** argv) {
  using namespace muster::kernels::cuda;
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
    std::puts("skipped: no GPU");
    return 0;
  }
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "file" && argc == 7)
    return orthogonalize_file(argv[2], std::atoll(argv[3]), {std::atoll(argv[4]), std::atoll(argv[5])}, argv[6]);
  if (what.empty() || what == "orthogonalize") {
    const std::string_view set = argc > 3 ? argv[3] : "polar_express";
    report_orthogonalizing(argc > 2 ? std::atoll(argv[2]) : 0, muster::coefficients(set));
  }
  if (what.empty() || what == "products") report_products();
}
