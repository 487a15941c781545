// One rank of a training: the model, its share of the weights, and Muster's optimizer.
//
// A step gathers the weights, computes the slots that are this rank's, sums gradients, and calls the optimizer. Every
// rank makes the same calls. Losses and weights depend on the recipe and the text alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cpu/thread_pool.h"
#include "muster/optimizer.h"
#include "run/timeline.h"
#include "train/corpus.h"
#include "train/gpt.h"
#include "train/problem.h"
#include "train/shards.h"

namespace muster::train {

// How it is carried out.
struct Execution {
  std::vector<MeshAxis> axes{{"fsdp", 1}};  // fsdp and replicate
  PlanOptions plan{.cost = CostTable::cpu()};
  int threads = 1;  // of a rank
};

struct TrainedStep {
  double loss = 0;           // mean over the tokens of the batch, before the step
  int64_t total_ns = 0;      // all of it, on this rank
  int64_t optimizer_ns = 0;  // in Optimizer::step
};

// A loss of the text that is not learnt from, after some steps.
struct HeldOut {
  int64_t step = 0;
  double loss = 0;

  bool operator==(const HeldOut&) const = default;
};

class Trainer {
 public:
  // The recipe, the corpus and the communicator are kept by reference. Throws InvalidArgument.
  Trainer(const Recipe& recipe, const Corpus& corpus, const Execution& execution, Communicator& communicator);

  // Throws Error, on all ranks and before weights are changed, if the loss is not finite.
  TrainedStep step();
  // The next one is traced: what happened in it is in timeline().
  void trace_next() { trace_ = true; }
  const run::Timeline& timeline() const { return timeline_; }
  int64_t steps() const { return optimizer_->steps(); }
  // Loss per token on the text that is held out.
  double held_out_loss();

  const Optimizer& optimizer() const { return *optimizer_; }
  int64_t elements() const { return map_.elements; }
  // Weights and the optimizer's state, as Optimizer's. What is loaded may be of another number of ranks.
  void save(const std::string& directory) { optimizer_->save(directory); }
  void load(const std::string& directory) { optimizer_->load(directory); }

 private:
  void fill_shard();
  std::vector<ParameterMemory> memory();
  // Calls visit(pass, model, room for its tokens) for passes begin to end, each on one thread. It must not throw.
  template <typename Visit>
  void for_each_pass(SlotRange passes, const Visit& visit);
  double sum_over_ranks(std::vector<double>& values);  // in their order; each is 0 on all ranks but one

  const Recipe& recipe_;
  const Corpus& corpus_;
  Communicator& communicator_;
  ModelConfig model_;
  WeightMap map_;
  Problem problem_;
  std::vector<Shard> shards_;
  const Shard& own_;
  std::vector<std::byte> weights_;  // this rank's shard, in the recipe's dtype
  std::vector<std::byte> extra_;    // as its form says
  std::vector<float> gradients_;    // this rank's shard
  std::vector<void*> gradient_pointers_;
  std::vector<float> whole_;
  WeightGather gather_;
  SlotSum sum_;
  kernels::cpu::ThreadPool threads_;
  std::vector<Gpt<float>> passes_;             // one a thread
  std::vector<std::vector<int32_t>> batches_;  // of tokens, the same
  std::unique_ptr<Optimizer> optimizer_;
  bool trace_ = false;
  run::Timeline timeline_;
};

}  // namespace muster::train
