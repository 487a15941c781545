#include "train/shards.h"

#include <algorithm>
#include <cstring>

#include "kernels/bf16.h"
#include "layout/partition.h"

namespace muster::train {
namespace {

void widen(const std::byte* from, float* to, int64_t count, Dtype dtype) {
  if (dtype == Dtype::kF32) {
    std::memcpy(to, from, static_cast<size_t>(count) * sizeof(float));
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    uint16_t high = 0;
    std::memcpy(&high, from + 2 * i, 2);
    to[i] = kernels::from_bf16(high);
  }
}

}  // namespace

std::vector<Shard> make_shards(const Problem& problem, const WeightMap& map) {
  std::vector<Shard> shards(static_cast<size_t>(problem.ranks));
  for (Shard& shard : shards) shard.offsets.push_back(0);
  for (size_t p = 0; p < map.tensors.size(); ++p) {
    const Parameter& parameter = problem.parameters[p];
    const layout::Partition partition(problem.meshes[0], parameter.layout, parameter.shape, parameter.name);
    for (int32_t rank = 0; rank < problem.ranks; ++rank) {
      Shard& shard = shards[rank];
      const int64_t begin = shard.offsets.back();
      for (const layout::Run& run : partition.shard(rank)) {
        run::for_each_row(parameter.shape, run, [&](const run::Row& row) {
          shard.rows.push_back({map.tensors[p].offset + row.first, begin + row.offset, row.count});
        });
      }
      shard.offsets.push_back(begin + partition.local_elements(rank));
      shard.replica = partition.replica(rank);
    }
  }
  return shards;
}

WeightGather::WeightGather(const std::vector<Shard>& shards, Dtype dtype, Communicator& communicator)
    : shards_(shards), dtype_(dtype), communicator_(communicator), received_(shards.size()) {
  for (size_t rank = 0; rank < shards.size(); ++rank) {
    if (shards[rank].replica != shards[communicator.rank()].replica) continue;
    received_[rank].resize(static_cast<size_t>(shards[rank].elements() * byte_size(dtype)));
  }
}

void WeightGather::run(std::span<const std::byte> own, std::span<float> whole) {
  std::vector<Send> sends;
  std::vector<Receive> receives;
  for (int32_t rank = 0; rank < communicator_.size(); ++rank) {
    if (shards_[rank].replica != shards_[communicator_.rank()].replica) continue;
    sends.push_back({rank, own.data(), std::ssize(own)});
    receives.push_back({rank, received_[rank].data(), std::ssize(received_[rank])});
  }
  communicator_.exchange(sends, receives, "gather weights")->wait();
  for (size_t rank = 0; rank < shards_.size(); ++rank) {
    if (received_[rank].empty()) continue;
    for (const run::Row& row : shards_[rank].rows) {
      widen(received_[rank].data() + row.offset * byte_size(dtype_), whole.data() + row.first, row.count, dtype_);
    }
  }
}

SlotRange slots_of(int64_t slots, int32_t rank, int32_t ranks) {
  return {slots * rank / ranks, slots * (rank + 1) / ranks};
}

SlotSum::SlotSum(const std::vector<Shard>& shards, int64_t slots, int64_t elements, Communicator& communicator)
    : shards_(shards),
      slots_(slots),
      communicator_(communicator),
      own_(slots_of(slots, communicator.rank(), communicator.size())) {
  const int64_t mine = shards[communicator.rank()].elements();
  for (int64_t slot = own_.begin; slot < own_.end; ++slot) gradients_.emplace_back(static_cast<size_t>(elements));
  for (int32_t rank = 0; rank < communicator.size(); ++rank) {
    sent_.emplace_back(static_cast<size_t>(own_.size() * shards[rank].elements()));
    received_.emplace_back(static_cast<size_t>(slots_of(slots, rank, communicator.size()).size() * mine));
  }
}

std::span<float> SlotSum::gradients(int64_t slot) { return gradients_[static_cast<size_t>(slot - own_.begin)]; }

void SlotSum::run(std::span<float> sum) {
  std::vector<Send> sends;
  std::vector<Receive> receives;
  for (int32_t rank = 0; rank < communicator_.size(); ++rank) {
    float* to = sent_[rank].data();
    for (const std::vector<float>& from : gradients_) {
      for (const run::Row& row : shards_[rank].rows) {
        std::copy_n(from.data() + row.first, row.count, to + row.offset);
      }
      to += shards_[rank].elements();
    }
    constexpr int64_t kWidth = sizeof(float);
    sends.push_back({rank, sent_[rank].data(), std::ssize(sent_[rank]) * kWidth});
    receives.push_back({rank, received_[rank].data(), std::ssize(received_[rank]) * kWidth});
  }
  communicator_.exchange(sends, receives, "gradients of slots")->wait();
  // Ranks have the slots in their order.
  std::fill(sum.begin(), sum.end(), 0.0F);
  for (const std::vector<float>& parts : received_) {
    for (size_t at = 0; at < parts.size(); at += sum.size()) {
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += parts[at + i];
    }
  }
}

}  // namespace muster::train
