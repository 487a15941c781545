#include "run/verify.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <tuple>

namespace muster::run {
namespace {

double number(Dtype dtype, const std::byte* from) {
  uint32_t bits = 0;
  std::memcpy(&bits, from, static_cast<size_t>(byte_size(dtype)));
  return std::bit_cast<float>(dtype == Dtype::kF32 ? bits : bits << 16);
}

}  // namespace

Verifier::Verifier(const Workload& workload, Communicator& communicator, const Options& options)
    : workload_(workload), communicator_(communicator), options_(options) {}

void Verifier::take_steps(Optimizer& optimizer, Gradients& gradients) const {
  for (int64_t step = 0; step < options_.steps; ++step) {
    for (int32_t g = 0; g < optimizer.groups(); ++g) optimizer.group(g).lr = workload_lr(g, step);
    optimizer.step(gradients.at(step));
  }
}

void Verifier::run_one_rank(const Inspect& inspect) {
  const Problem& problem = workload_.problem();
  std::optional<Weights> one;
  if (communicator_.rank() == 0) {
    one.emplace(workload_, kWhole);
    const std::unique_ptr<Communicator> alone = std::move(make_local_communicators(1).front());
    OptimizerOptions options;
    options.plan.scratch_bytes = 0;
    options.groups = workload_groups();
    options.threads = options_.threads;
    Optimizer optimizer(on_one_rank(problem), options, *alone, one->memory());
    Gradients gradients(workload_, kWhole);
    take_steps(optimizer, gradients);
  }
  expected_.clear();
  std::vector<std::byte> whole;
  for (int32_t p = 0; p < static_cast<int32_t>(problem.parameters.size()); ++p) {
    const int64_t width = byte_size(problem.parameters[p].dtype);
    whole.resize(static_cast<size_t>(workload_.elements(p, kWhole) * width));
    if (one) std::ranges::copy(one->shard(p), whole.begin());
    communicator_.broadcast(whole.data(), std::ssize(whole), 0, "one rank's weights")->wait();
    expected_.emplace_back(static_cast<size_t>(workload_.elements(p, communicator_.rank()) * width));
    workload_.take_shard(p, communicator_.rank(), whole.data(), expected_.back().data());
    inspect(p, whole);
  }
}

std::optional<Difference> Verifier::compare(const PlanOptions& plan) {
  Weights weights(workload_, communicator_.rank());
  {
    OptimizerOptions options;
    options.plan = plan;
    options.groups = workload_groups();
    options.threads = options_.threads;
    Optimizer optimizer(workload_.problem(), options, communicator_, weights.memory());
    Gradients gradients(workload_, communicator_.rank());
    take_steps(optimizer, gradients);
  }
  return first_of_all(own_difference(weights));
}

std::optional<Difference> Verifier::own_difference(const Weights& weights) const {
  const int32_t rank = communicator_.rank();
  for (int32_t p = 0; p < static_cast<int32_t>(expected_.size()); ++p) {
    const std::span<const std::byte> got = weights.shard(p);
    const std::span<const std::byte> expected = expected_[p];
    if (std::ranges::equal(got, expected)) continue;
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
