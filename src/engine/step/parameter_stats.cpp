#include "engine/step/parameter_stats.h"

#include <algorithm>
#include <cmath>

namespace muster::engine {

using kernels::SumOfSquares;

namespace {

// Writes zeros over `count` words of 4 bytes.
void clear_words(kernels::Kernels& kernels, void* data, int64_t count) {
  const kernels::CopyBlock zeros{.rows = 1, .columns = count, .from_stride = count, .to = data, .to_stride = count};
  kernels.copy(4, {&zeros, 1});
}

template <typename T>
std::vector<T> read(kernels::Kernels& kernels, const DeviceBytes& bytes, size_t count) {
  std::vector<T> out(count);
  kernels.read(out.data(), bytes.data(), {1, static_cast<int64_t>(count * sizeof(T)), 0, 0});
  return out;
}

Dtype dtype_of(WeightForm form) { return form == WeightForm::kF32 ? Dtype::kF32 : Dtype::kBf16; }

}  // namespace

int64_t* ParameterStatsCollector::weights() const {
  const auto parameters = std::ssize(catalog_.problem().parameters);
  return sums_.size() == 0 ? nullptr : changes() + parameters * SumOfSquares::kWords;
}

void ParameterStatsCollector::start() {
  const auto parameters = std::ssize(catalog_.problem().parameters);
  constexpr int64_t kSums = 2 * SumOfSquares::kWords * static_cast<int64_t>(sizeof(int64_t));
  if (sums_.size() == 0) sums_ = {kernels_, parameters * kSums};
  if (errors_.size() == 0) errors_ = {kernels_, catalog_.matrix_count() * static_cast<int64_t>(sizeof(double))};
  if (kept_.size() == 0) kept_ = {kernels_, kPieceElements * static_cast<int64_t>(sizeof(float))};
  for (const DeviceBytes* bytes : {&sums_, &errors_}) {
    if (bytes->size() > 0) clear_words(kernels_, bytes->data(), bytes->size() / 4);
  }
}

void ParameterStatsCollector::keep_weights(Watched& watched) {
  kernels::ChangeBlock& block = watched.block;
  const int64_t elements = block.rows * block.columns;
  const int64_t bytes = elements * static_cast<int64_t>(sizeof(float));
  if (kept_.size() > 0 && kept_.size() < bytes) kept_ = {kernels_, bytes};  // one long row
  block.values = kept_.as<float>();
  clear_words(kernels_, block.values, elements);
  kernels_.subtract_from_weights(watched.form, {&block, 1});
}

void ParameterStatsCollector::add_change(const Watched& watched) {
  const kernels::ChangeBlock& block = watched.block;
  kernels_.subtract_from_weights(watched.form, {&block, 1});
  const int64_t elements = block.rows * block.columns;
  const kernels::ValueBlock change{.rows = 1,
                                   .columns = elements,
                                   .data = block.values,
                                   .stride = elements,
                                   .active = block.active,
                                   .number = watched.parameter};
  kernels_.sum_squares(Dtype::kF32, {&change, 1}, changes());
}

void ParameterStatsCollector::add_weights(const Holdings& holdings, std::span<const ParameterMemory> memory) {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16}) {
    std::vector<kernels::ValueBlock> blocks;
    for (size_t p = 0; p < memory.size(); ++p) {
      if (!holdings.any(p) || holdings.replica[p] != 0 || dtype_of(memory[p].form) != dtype) continue;
      const int64_t elements = holdings.elements[p];
      blocks.push_back({.rows = 1,
                        .columns = elements,
                        .data = memory[p].weight,
                        .stride = elements,
                        .number = static_cast<int64_t>(p)});
    }
    if (!blocks.empty()) kernels_.sum_squares(dtype, blocks, weights());
  }
}

void ParameterStatsCollector::report(Communicator& communicator, const std::string& label,
                                     std::vector<ParameterStats>& out) {
  constexpr size_t kWords = SumOfSquares::kWords;
  const std::vector<Parameter>& parameters = catalog_.problem().parameters;
  const size_t count = parameters.size();
  std::vector<int64_t> words = read<int64_t>(kernels_, sums_, 2 * count * kWords);
  const auto errors = read<double>(kernels_, errors_, static_cast<size_t>(catalog_.matrix_count()));

  // One rank measures each matrix; elsewhere, or if it sat out, its error is 0. As a square it joins an exact sum.
  std::vector<SumOfSquares> gram_errors(count);
  std::vector<double> short_sides(count);
  for (int32_t j = 0; j < catalog_.matrix_count(); ++j) {
    const auto p = static_cast<size_t>(catalog_.parameter_of(j));
    const auto root = static_cast<float>(std::sqrt(errors[static_cast<size_t>(j)]));
    gram_errors[p].add(&root, 1, 1, 1);
    short_sides[p] += static_cast<double>(std::min(catalog_.rows(j), catalog_.columns(j)));
  }
  for (const SumOfSquares& sum : gram_errors) words.insert(words.end(), sum.words().begin(), sum.words().end());
  communicator.all_reduce(words, ReduceOp::kSum, label)->wait();

  const auto mean_root = [&](size_t sum, double elements) {
    SumOfSquares squares;
    std::copy_n(words.begin() + static_cast<int64_t>(sum * kWords), kWords, squares.words().begin());
    return elements > 0 ? std::sqrt(squares.value() / elements) : 0;
  };
  for (size_t p = 0; p < count; ++p) {
    const auto elements = static_cast<double>(element_count(parameters[p].shape));
    out[p].update_rms = mean_root(p, elements);
    out[p].weight_rms = mean_root(count + p, elements);
    out[p].orthogonality_error = mean_root(2 * count + p, short_sides[p]);
  }
}

}  // namespace muster::engine
