// Orthogonalization for a caller without an engine, on the caller's stream.
#include <algorithm>
#include <cuda_runtime_api.h>
#include <map>
#include <mutex>
#include <string>

#include "base/alignment.h"
#include "kernels/cuda/newton_schulz/orthogonalizer.h"
#include "kernels/cuda/runtime/cuda_check.h"
#include "kernels/cuda/runtime/cuda_devices.h"
#include "kernels/cuda/runtime/cuda_handles.h"
#include "kernels/cuda/runtime/launch_queue.h"
#include "kernels/kernels.h"
#include "muster/error.h"

namespace muster::kernels {
namespace cuda {
namespace {

constexpr int64_t kAlign = 256;

// Lets this thread make handles and memory of its own while a stream is being captured.
class DuringCapture {
 public:
  DuringCapture() { check(cudaThreadExchangeStreamCaptureMode(&mode_), "capture mode"); }
  DuringCapture(const DuringCapture&) = delete;
  DuringCapture& operator=(const DuringCapture&) = delete;
  ~DuringCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

// What the calls of a device have in common: handles and what is slow to find out, nothing that a result depends on.
struct Handles {
  explicit Handles(int device) : orthogonalizer(device) {
    check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device), "device");
  }

  std::mutex mutex;  // held while a call enqueues
  LaunchQueue queue;
  Orthogonalizer orthogonalizer;
  int multiprocessors = 1;
};

// Made by the first call, and never destroyed: the driver may end before this library does. The device is current.
Handles& handles_of(int device) {
  static std::mutex mutex;
  static auto* const all = new std::map<int, Handles>();
  const std::lock_guard lock(mutex);
  const auto found = all->find(device);
  if (found != all->end()) return found->second;
  if (device < 0 || device >= cuda_devices()) {
    throw InvalidArgument("device cuda:" + std::to_string(device) + ": there are " + std::to_string(cuda_devices()) +
                          " CUDA devices");
  }
  require_supported(device);
  const DeviceGuard guard(device);
  return all->try_emplace(device, device).first->second;
}

// A part of the matrices at a time goes through the workspace: [lent | arguments | scratch].
struct Parts {
  Parts(const Handles& handles, const OrthogonalizeBatch& batch, int64_t count)
      : size(std::min(count, best_batch_size(batch.shape, handles.multiprocessors))),
        lent(handles.orthogonalizer.lent_bytes()),
        arguments(base::round_up(size * argument_bytes(batch.options.coefficients), kAlign)),
        scratch(handles.orthogonalizer.workspace(batch.shape, size, batch.options)) {}

  int64_t size;  // matrices
  int64_t lent;
  int64_t arguments;
  int64_t scratch;

  int64_t bytes() const { return lent + arguments + scratch; }

 private:
  // The most that orthogonalizing one matrix uploads: its own, the settings of norms, and the scalars of the steps.
  static int64_t argument_bytes(const Coefficients& coefficients) {
    constexpr int64_t kSettings = 64;
    const int64_t scalars = (2 * std::ssize(coefficients.steps) + 1) * static_cast<int64_t>(sizeof(Scalars));
    return base::round_up(sizeof(UpdateMatrix), DirectArguments::kAlign) + kSettings +
           base::round_up(scalars, DirectArguments::kAlign);
  }
};

// Direct calls with memory of the caller's, from construction to destruction.
class Direct {
 public:
  Direct(Handles& handles, cudaStream_t stream, const Parts& parts, std::byte* memory) : handles_(handles) {
    handles_.orthogonalizer.lend(memory, stream);
    handles_.queue.begin_direct(stream, {memory + parts.lent, static_cast<size_t>(parts.arguments)});
  }
  Direct(const Direct&) = delete;
  Direct& operator=(const Direct&) = delete;
  ~Direct() {
    handles_.queue.end_direct();
    handles_.orthogonalizer.give_back();
  }

 private:
  Handles& handles_;
};

}  // namespace
}  // namespace cuda

int64_t cuda_orthogonalize_workspace(const OrthogonalizeBatch& batch, int64_t count, const CudaOptions& options) {
  const cuda::DuringCapture during_capture;
  cuda::Handles& handles = cuda::handles_of(options.device);
  const std::lock_guard lock(handles.mutex);
  return cuda::Parts(handles, batch, count).bytes();
}

void cuda_orthogonalize(const OrthogonalizeBatch& batch, const CudaOptions& options) {
  const auto& matrices = batch.matrices;
  if (matrices.empty() || batch.shape.rows == 0 || batch.shape.columns == 0) return;
  const cuda::DuringCapture during_capture;
  cuda::Handles& handles = cuda::handles_of(options.device);
  const cuda::DeviceGuard guard(options.device);
  const std::lock_guard lock(handles.mutex);
  const cuda::Parts parts(handles, batch, std::ssize(matrices));
  auto* const memory = static_cast<std::byte*>(batch.workspace.data);
  if (memory == nullptr || reinterpret_cast<uintptr_t>(memory) % cuda::kAlign != 0 ||
      batch.workspace.bytes < parts.bytes()) {
    throw InvalidArgument("orthogonalize: workspace of " + std::to_string(batch.workspace.bytes) +
                          " bytes at address " + std::to_string(reinterpret_cast<uintptr_t>(memory)) + ", expected " +
                          std::to_string(parts.bytes()) + " bytes, aligned to " + std::to_string(cuda::kAlign));
  }
  const auto stream = static_cast<cudaStream_t>(options.stream.value_or(nullptr));
  for (size_t begin = 0; begin < matrices.size(); begin += static_cast<size_t>(parts.size)) {
    OrthogonalizeBatch part = batch;
    part.matrices = matrices.subspan(begin, std::min(static_cast<size_t>(parts.size), matrices.size() - begin));
    part.workspace = {memory + parts.lent + parts.arguments, parts.scratch};
    const cuda::Direct direct(handles, stream, parts, memory);
    handles.orthogonalizer.run(part, handles.queue);
  }
}

}  // namespace muster::kernels
