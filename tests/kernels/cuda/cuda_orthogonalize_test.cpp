// The public function on a device: the caller's stream, the caller's graph, and the bits of the engine.
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include <gtest/gtest.h>

#include "kernels/cuda/runtime/cuda_handles.h"
#include "muster/error.h"
#include "muster/orthogonalize.h"
#include "orthogonalizing.h"

namespace muster::kernels::cuda {
namespace {

using CudaOrthogonalize = DeviceTest;

// Matrices without gaps, and what a call needs.
class Call {
 public:
  Call(const OrthogonalizeOptions& options, MatrixShape shape, size_t count, cudaStream_t stream)
      : size_(static_cast<size_t>(shape.rows * shape.columns)), memory_(count * size_ * width_of(options.wire)) {
    call_ = {.matrices = memory_.data(),
             .count = static_cast<int64_t>(count),
             .rows = shape.rows,
             .columns = shape.columns,
             .dtype = options.wire,
             .coefficients = options.coefficients,
             .device = {Device::Kind::kCuda, 0, stream}};
    workspace_.emplace(static_cast<size_t>(orthogonalize_workspace(call_)));
    call_.workspace = workspace_->data();
  }

  const Orthogonalization& operator*() const { return call_; }

  void write(const std::vector<Values>& matrices) {
    const bool f32 = call_.dtype == Dtype::kF32;
    for (size_t m = 0; m < matrices.size(); ++m) {
      std::vector<uint16_t> halves;
      for (const float value : matrices[m])
        halves.push_back(static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16));
      const void* const from = f32 ? static_cast<const void*>(matrices[m].data()) : halves.data();
      check(cudaMemcpy(at(m), from, size_ * width_of(call_.dtype), cudaMemcpyHostToDevice), "write");
    }
    settle();
  }

  Values read(size_t m) const {
    Values values(size_);
    if (call_.dtype == Dtype::kF32) {
      check(cudaMemcpy(values.data(), at(m), size_ * 4, cudaMemcpyDeviceToHost), "read");
      return values;
    }
    std::vector<uint16_t> halves(size_);
    check(cudaMemcpy(halves.data(), at(m), size_ * 2, cudaMemcpyDeviceToHost), "read");
    for (size_t i = 0; i < size_; ++i) values[i] = std::bit_cast<float>(static_cast<uint32_t>(halves[i]) << 16);
    return values;
  }

 private:
  std::byte* at(size_t m) const { return memory_.data() + m * size_ * width_of(call_.dtype); }

  size_t size_;
  DeviceVector<std::byte> memory_;
  Orthogonalization call_;
  std::optional<DeviceVector<std::byte>> workspace_;
};

std::vector<Values> random_batch(MatrixShape shape, size_t count, unsigned seed) {
  std::vector<Values> out;
  for (size_t m = 0; m < count; ++m) out.push_back(random_matrix(shape, seed + static_cast<unsigned>(m)));
  return out;
}

void expect_same(const Call& call, const std::vector<Values>& expected, const std::string& what) {
  for (size_t m = 0; m < expected.size(); ++m) EXPECT_EQ(call.read(m), expected[m]) << what << ", matrix " << m;
}

// Both forms, matrices that are not aligned, and more matrices than go through a workspace together.
TEST_F(CudaOrthogonalize, HasTheBitsOfTheEngineEnqueuedAndReplayedWithOtherValues) {
  const OwnedStream stream;
  for (const auto& [shape, count] : {std::pair{MatrixShape{256, 256}, size_t{3}},
                                     {MatrixShape{128, 512}, size_t{2}},
                                     {MatrixShape{512, 128}, size_t{1}},
                                     {MatrixShape{3, 5}, size_t{7}},
                                     {MatrixShape{16, 8}, size_t{700}}}) {
    for (const Dtype wire : {Dtype::kF32, Dtype::kBf16}) {
      for (const char* const set : {"polar_express", "capped3"}) {
        OrthogonalizeOptions options;
        options.wire = wire;
        options.coefficients = coefficients(set);
        const std::string what = std::to_string(shape.rows) + "x" + std::to_string(shape.columns) + " " + set;
        const std::vector<Values> inputs = random_batch(shape, count, 1);
        const std::vector<Values> expected = orthogonalized(options, shape, inputs);
        Call call(options, shape, count, stream);
        call.write(inputs);
        orthogonalize(*call);
        check(cudaStreamSynchronize(stream), "enqueued");
        expect_same(call, expected, what);

        cudaGraph_t graph = nullptr;
        cudaGraphExec_t executable = nullptr;
        check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "capture");
        orthogonalize(*call);
        check(cudaStreamEndCapture(stream, &graph), "capture");
        check(cudaGraphInstantiate(&executable, graph, 0), "graph");
        expect_same(call, expected, what + ", captured only");
        for (const unsigned seed : {1000U, 2000U}) {
          const std::vector<Values> others = random_batch(shape, count, seed);
          call.write(others);
          Call between({.coefficients = coefficients("jordan")}, {64, 64}, 2, stream);  // shares only handles
          between.write(random_batch({64, 64}, 2, seed));
          orthogonalize(*between);
          check(cudaGraphLaunch(executable, stream), "replay");
          check(cudaStreamSynchronize(stream), "replay");
          expect_same(call, orthogonalized(options, shape, others), what + ", replayed");
        }
        cudaGraphExecDestroy(executable);
        cudaGraphDestroy(graph);
      }
    }
  }
}

TEST_F(CudaOrthogonalize, NaNStaysInItsMatrix) {
  std::vector<Values> inputs = random_batch({64, 32}, 2, 3);
  const std::vector<Values> expected = orthogonalized({}, {64, 32}, inputs);
  inputs[0][5] = std::numeric_limits<float>::quiet_NaN();
  Call call({}, {64, 32}, 2, nullptr);
  call.write(inputs);
  orthogonalize(*call);
  settle();
  EXPECT_TRUE(std::isnan(call.read(0)[0]));
  EXPECT_EQ(call.read(1), expected[1]);
}

TEST_F(CudaOrthogonalize, RefusesAWorkspaceThatIsMissingOrNotAligned) {
  const Call call({}, {64, 32}, 2, nullptr);
  Orthogonalization bad = *call;
  bad.workspace = nullptr;
  EXPECT_THROW(orthogonalize(bad), InvalidArgument);
  bad.workspace = static_cast<std::byte*>((*call).workspace) + 16;
  EXPECT_THROW(orthogonalize(bad), InvalidArgument);
  bad = *call;
  bad.device.index = 4096;
  EXPECT_THROW(orthogonalize(bad), InvalidArgument);
}

}  // namespace
}  // namespace muster::kernels::cuda
