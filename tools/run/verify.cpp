#include "run/verify.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <tuple>

#include "backends.h"

namespace muster::run {
namespace {

double number(Dtype dtype, const std::byte* from) {
  uint32_t bits = 0;
  std::memcpy(&bits, from, static_cast<size_t>(byte_size(dtype)));
  return std::bit_cast<float>(dtype == Dtype::kF32 ? bits : bits << 16);
}

}  // namespace

Verifier::Verifier(const Workload& workload, Communicator& communicator, const Options& options)
    : workload_(workload), communicator_(communicator), options_(options), kernels_(make_kernels(options.device, 1)) {}

// `rank` says whose gradients: kWhole for the one that holds everything.
void Verifier::take_steps(const Problem& problem, int32_t rank, OptimizerOptions options, Communicator& communicator,
                          Weights& weights) const {
  options.groups = workload_.groups();
  options.threads = options_.threads;
  options.device = options_.device;
  Gradients gradients(workload_, rank, *kernels_, options_.device.kind == Device::Kind::kCpu ? 1 : kDeviceGradients);
  Optimizer optimizer(problem, options, communicator, weights.memory());
  for (int64_t step = 0; step < options_.steps; ++step) {
    for (int32_t g = 0; g < optimizer.groups(); ++g) optimizer.group(g).lr = workload_lr(g, step);
    if (step >= kDeviceGradients) optimizer.synchronize();  // what its gradients are written over
    optimizer.step(gradients.at(step));
  }
  optimizer.synchronize();
}

void Verifier::run_one_rank(const Inspect& inspect) {
  const Problem& problem = workload_.problem();
  std::optional<Weights> one;
  if (communicator_.rank() == 0) {
    one.emplace(workload_, kWhole, *kernels_);
    const std::unique_ptr<Communicator> alone = std::move(make_local_communicators(1).front());
    OptimizerOptions options;
    options.plan.scratch_bytes = 0;
    options.graph = false;  // plainly: what is recorded elsewhere is compared with it
    take_steps(on_one_rank(problem), kWhole, options, *alone, *one);
  }
  expected_.clear();
  std::vector<std::byte> whole;
  for (int32_t p = 0; p < static_cast<int32_t>(problem.parameters.size()); ++p) {
    const int64_t width = byte_size(problem.parameters[p].dtype);
    whole.resize(static_cast<size_t>(workload_.elements(p, kWhole) * width));
    if (one) whole = one->shard(p);
    communicator_.broadcast(whole.data(), std::ssize(whole), 0, "one rank's weights")->wait();
    expected_.emplace_back(static_cast<size_t>(workload_.elements(p, communicator_.rank()) * width));
    workload_.take_shard(p, communicator_.rank(), whole.data(), expected_.back().data());
    inspect(p, whole);
  }
}

std::optional<Difference> Verifier::compare(const PlanOptions& plan, bool graph) {
  Weights weights(workload_, communicator_.rank(), *kernels_);
  OptimizerOptions options;
  options.plan = plan;
  options.graph = graph;
  take_steps(workload_.problem(), communicator_.rank(), options, communicator_, weights);
  return first_of_all(own_difference(weights));
}

std::optional<Difference> Verifier::own_difference(const Weights& weights) const {
  const int32_t rank = communicator_.rank();
  for (int32_t p = 0; p < static_cast<int32_t>(expected_.size()); ++p) {
    const std::vector<std::byte> got = weights.shard(p);
    const std::vector<std::byte>& expected = expected_[p];
    if (got == expected) continue;
    const Dtype dtype = workload_.problem().parameters[p].dtype;
    const int64_t width = byte_size(dtype);
    for (int64_t offset = 0; offset < std::ssize(got) / width; ++offset) {
      const std::byte* const a = got.data() + offset * width;
      const std::byte* const b = expected.data() + offset * width;
      if (std::memcmp(a, b, static_cast<size_t>(width)) == 0) continue;
      return Difference{p, workload_.element_at(p, rank, offset), rank, number(dtype, a), number(dtype, b)};
    }
  }
  return std::nullopt;
}

std::optional<Difference> Verifier::first_of_all(const std::optional<Difference>& own) {
  struct Found {
    int64_t any = 0;
    Difference difference;
  };
  const Found mine{own ? 1 : 0, own.value_or(Difference{})};
  std::vector<Found> all(static_cast<size_t>(communicator_.size()));
  communicator_.all_gather(&mine, all.data(), sizeof(Found), "differences")->wait();
  std::erase_if(all, [](const Found& found) { return found.any == 0; });
  const auto first = std::ranges::min_element(all, {}, [](const Found& found) {
    return std::tuple(found.difference.parameter, found.difference.element, found.difference.rank);
  });
  return first == all.end() ? std::nullopt : std::optional(first->difference);
}

}  // namespace muster::run
