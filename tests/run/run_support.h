// What the tests of runs share: a small problem, and a communicator that lies.
#pragma once

#include <cstdint>
#include <memory>

#include "muster/communicator.h"
#include "support/problems.h"

namespace muster::run {

// Flips a bit in the last bytes that one rank is sent in every exchange.
class Tampered final : public Communicator {
 public:
  Tampered(Communicator& inner, int32_t rank) : inner_(inner), rank_(rank) {}

  int32_t rank() const override { return inner_.rank(); }
  int32_t size() const override { return inner_.size(); }
  std::chrono::milliseconds timeout() const override { return inner_.timeout(); }
  std::unique_ptr<Request> exchange(std::span<const Send> sends, std::span<const Receive> receives,
                                    std::string_view label) override {
    std::unique_ptr<Request> request = inner_.exchange(sends, receives, label);
    if (rank() == rank_ && !receives.empty()) {
      request->wait();
      const Receive& last = receives.back();
      static_cast<uint8_t*>(last.data)[last.bytes - 1] ^= 1;
    }
    return request;
  }
  std::unique_ptr<Request> all_gather(const void* mine, void* all, int64_t bytes, std::string_view label) override {
    return inner_.all_gather(mine, all, bytes, label);
  }
  std::unique_ptr<Request> reduce_scatter(const float* all, float* mine, std::span<const int64_t> parts, ReduceOp op,
                                          std::string_view label) override {
    return inner_.reduce_scatter(all, mine, parts, op, label);
  }
  std::unique_ptr<Request> all_reduce(std::span<float> data, ReduceOp op, std::string_view label) override {
    return inner_.all_reduce(data, op, label);
  }
  std::unique_ptr<Request> all_reduce(std::span<double> data, ReduceOp op, std::string_view label) override {
    return inner_.all_reduce(data, op, label);
  }
  std::unique_ptr<Request> all_reduce(std::span<int64_t> data, ReduceOp op, std::string_view label) override {
    return inner_.all_reduce(data, op, label);
  }
  std::unique_ptr<Request> broadcast(void* data, int64_t bytes, int32_t root, std::string_view label) override {
    return inner_.broadcast(data, bytes, root, label);
  }
  std::unique_ptr<Request> barrier(std::string_view label) override { return inner_.barrier(label); }
  void abort(std::string_view reason) override { inner_.abort(reason); }

 private:
  Communicator& inner_;
  int32_t rank_;
};

// Matrices of two shapes and a vector; the second matrix is cut by columns, so that storage is not in the order of
// elements.
inline Problem sample(int32_t ranks) {
  Problem problem = test::one_parameter({18, 12}, ranks, Algorithm::kNorMuon);
  problem.parameters.push_back(problem.parameters[0]);
  problem.parameters[1].name = "v";
  problem.parameters[1].shape = {20, 12};
  problem.parameters[1].dtype = Dtype::kBf16;
  problem.parameters[1].layout.placements = {Placement::shard(1)};
  problem.parameters.push_back(problem.parameters[0]);
  problem.parameters[2].name = "gain";
  problem.parameters[2].shape = {7};
  problem.parameters[2].algorithm = Algorithm::kAdamW;
  return problem;
}

}  // namespace muster::run
