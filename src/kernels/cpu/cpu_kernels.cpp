#include "kernels/cpu/cpu_kernels.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <vector>

#include "base/alignment.h"
#include "base/offset_pointer.h"
#include "kernels/bf16.h"
#include "kernels/cpu/newton_schulz.h"
#include "kernels/cpu/normuon.h"
#include "kernels/cpu/pieces.h"
#include "kernels/cpu/thread_pool.h"
#include "muster/error.h"

namespace muster::kernels {
namespace cpu {
namespace {

constexpr int64_t kAlign = 64;
int64_t align(int64_t bytes) { return base::round_up(std::max<int64_t>(bytes, 1), kAlign); }
int64_t orthogonal_bytes(MatrixShape shape) { return align(shape.rows * shape.columns * 4); }

// Strides and columns count bytes.
void copy_bytes(const CopyBlock& b) {
  const bool dense = b.to_stride == b.columns && (b.from == nullptr || b.from_stride == b.columns);
  const int64_t rows = dense ? std::min<int64_t>(b.rows, 1) : b.rows;
  const auto bytes = static_cast<size_t>(dense ? b.rows * b.columns : b.columns);
  for (int64_t i = 0; i < rows && bytes > 0; ++i) {
    void* const row = base::offset_by(b.to, i * b.to_stride, 1);
    if (b.from == nullptr) {
      std::memset(row, 0, bytes);
    } else {
      std::memcpy(row, base::offset_by(b.from, i * b.from_stride, 1), bytes);
    }
  }
}

void add_row(Dtype dtype, const void* from, int64_t count, float* to) {
  if (dtype == Dtype::kF32) {
    const auto* const values = static_cast<const float*>(from);
    for (int64_t i = 0; i < count; ++i) to[i] += values[i];
    return;
  }
  const auto* const values = static_cast<const uint16_t*>(from);
  for (int64_t i = 0; i < count; ++i) to[i] += from_bf16(values[i]);
}

WeightBlock part_of(const WeightBlock& weight, WeightForm form, const Piece& piece) {
  WeightBlock part = weight;
  const int64_t offset = piece.row * weight.stride + piece.column;
  part.data = base::offset_by(weight.data, offset, weight_bytes(form));
  part.extra = base::offset_by(weight.extra, offset, extra_bytes(form));
  part.first_index += piece.row * weight.row_index_stride + piece.column;
  return part;
}

ElementRange part_of(const ElementRange& range, Dtype grad, WeightForm form, const Piece& piece) {
  ElementRange part = range;
  part.count = piece.columns;
  part.grad = base::offset_by(range.grad, piece.column, byte_size(grad));
  part.first = range.first == nullptr ? nullptr : range.first + piece.column;
  part.second = range.second == nullptr ? nullptr : range.second + piece.column;
  part.weight = part_of(range.weight, form, piece);
  return part;
}

template <typename Options>
Options with_clip(Options options) {
  if (options.clip != nullptr) options.grad_scale *= *options.clip;
  return options;
}
bool sits_out(const auto& block) { return block.active != nullptr && *block.active == 0; }

void check_dtype(Dtype dtype, const char* what) {
  if (dtype == Dtype::kF16) throw InvalidArgument(std::string(what) + ": f16: the CPU knows f32 and bf16");
}

class CpuKernels final : public Kernels {
 public:
  CpuKernels(const CpuOptions& options, const Elementwise& elementwise)
      : elementwise_(elementwise), pool_(options.threads) {}

  void* allocate(int64_t bytes) override {
    const auto size = static_cast<size_t>(align(bytes));
    void* const data = std::aligned_alloc(kAlign, size);
    if (data == nullptr) throw std::bad_alloc();
    return std::memset(data, 0, size);
  }
  void release(void* data) noexcept override { std::free(data); }
  void read(void* host, const void* device, const HostRows& rows) override {
    copy_bytes({rows.rows, rows.bytes, device, rows.device_stride, host, rows.host_stride});
  }
  void write(void* device, const void* host, const HostRows& rows) override {
    copy_bytes({rows.rows, rows.bytes, host, rows.host_stride, device, rows.device_stride});
  }

  void copy(int64_t width, std::span<const CopyBlock> blocks) override {
    for (const CopyBlock& b : blocks) {
      copy_bytes({b.rows, b.columns * width, b.from, b.from_stride * width, b.to, b.to_stride * width});
    }
  }

  void add(Dtype dtype, std::span<const AddBlock> blocks) override {
    check_dtype(dtype, "values");
    for (const AddBlock& b : blocks) {
      for (int64_t i = 0; b.from != nullptr && i < b.rows; ++i) {
        add_row(dtype, base::offset_by(b.from, i * b.from_stride, byte_size(dtype)), b.columns, b.to + i * b.to_stride);
      }
    }
  }

  void divide(std::span<const DivideRange> ranges) override {
    for (const DivideRange& r : ranges) {
      for (int64_t i = 0; i < r.count; ++i) r.data[i] /= r.divisor;
    }
  }

  void momentum_pack(const MomentumOptions& options, std::span<const MomentumBlock> blocks) override {
    check_dtype(options.grad, "gradient");
    check_dtype(options.momentum, "momentum");
    check_dtype(options.wire, "wire");
    const MomentumOptions clipped = with_clip(options);
    each_piece(pool_, blocks, cut_of<MomentumBlock>, [&](const MomentumBlock& block, const Piece& piece, int) {
      if (sits_out(block)) return;
      MomentumBlock part = block;
      part.rows = piece.rows;
      part.columns = piece.columns;
      const auto offset = [&](int64_t stride) { return piece.row * stride + piece.column; };
      part.grad = base::offset_by(block.grad, offset(block.grad_stride), byte_size(options.grad));
      part.momentum = base::offset_by(block.momentum, offset(block.momentum_stride), byte_size(options.momentum));
      part.update = base::offset_by(block.update, offset(block.update_stride), byte_size(options.wire));
      // Without an update the same loop runs and its output is discarded, so that momentum has the same bits.
      thread_local std::vector<std::byte> discarded;
      if (block.update == nullptr) {
        discarded.resize(static_cast<size_t>(piece.columns * byte_size(options.wire)));
        part.update = discarded.data();
        part.update_stride = 0;
      }
      elementwise_.momentum_pack(clipped, part);
    });
  }

  void apply(const ApplyOptions& options, std::span<const ApplyBlock> blocks) override {
    check_dtype(options.wire, "wire");
    each_piece(pool_, blocks, cut_of<ApplyBlock>, [&](const ApplyBlock& block, const Piece& piece, int) {
      if (sits_out(block)) return;
      ApplyBlock part = block;
      part.rows = piece.rows;
      part.columns = piece.columns;
      const int64_t offset = piece.row * block.update_stride + piece.column;
      part.update = base::offset_by(block.update, offset, byte_size(options.wire));
      part.weight = part_of(block.weight, options.form, piece);
      elementwise_.apply(options, part);
    });
  }

  void adamw(const AdamWOptions& options, std::span<const ElementRange> ranges) override {
    check_dtype(options.grad, "gradient");
    const AdamWOptions clipped = with_clip(options);
    each_piece(pool_, ranges, cut_of_range<ElementRange>, [&](const ElementRange& range, const Piece& piece, int) {
      if (sits_out(range)) return;
      AdamWOptions own = clipped;
      if (range.updates != nullptr) own.step = *range.updates + 1;
      elementwise_.adamw(own, part_of(range, options.grad, options.form, piece));
    });
  }

  void lion(const LionOptions& options, std::span<const ElementRange> ranges) override {
    check_dtype(options.grad, "gradient");
    const LionOptions clipped = with_clip(options);
    each_piece(pool_, ranges, cut_of_range<ElementRange>, [&](const ElementRange& range, const Piece& piece, int) {
      if (sits_out(range)) return;
      elementwise_.lion(clipped, part_of(range, options.grad, options.form, piece));
    });
  }

  void subtract_from_weights(WeightForm form, std::span<const ChangeBlock> blocks) override {
    each_piece(pool_, blocks, cut_of<ChangeBlock>, [&](const ChangeBlock& block, const Piece& piece, int) {
      if (sits_out(block)) return;
      // A piece is whole rows or part of one row, so its values are contiguous too.
      float* const values = block.values + piece.row * block.columns + piece.column;
      elementwise_.subtract_from_weights(
          form, {piece.rows, piece.columns, part_of(block.weight, form, piece), values, nullptr});
    });
  }

  int64_t concurrent_matrices() const override { return pool_.threads(); }

  // For scale: two matrices of 3072 x 768 on two threads take 90 MiB.
  int64_t largest_workspace() const override { return (int64_t{48} << 20) * pool_.threads(); }

  int64_t orthogonalize_workspace(MatrixShape shape, int64_t count,
                                  const OrthogonalizeOptions& options) const override {
    const int64_t bytes = std::min<int64_t>(count, pool_.threads()) * newton_schulz_matrix_bytes(form_of(shape), shape);
    if (!options.normuon) return bytes;
    return count * orthogonal_bytes(shape) + std::max(bytes, count * normuon_matrix_bytes(shape));
  }

  // NorMuon reads the orthogonal factor in f32, before it is rounded to the wire dtype.
  void orthogonalize(const OrthogonalizeBatch& batch) override {
    const auto& [options, shape, matrices, workspace] = batch;
    check_dtype(options.wire, "wire");
    const int64_t o_bytes = options.normuon ? orthogonal_bytes(shape) : 0;
    const int64_t all_bytes = static_cast<int64_t>(matrices.size()) * o_bytes;
    auto* const scratch = static_cast<char*>(workspace.data);
    const Workspace rest{scratch + all_bytes, workspace.bytes - all_bytes};
    if (rest.bytes < 0)
      throw InvalidArgument("orthogonalize: workspace of " + std::to_string(workspace.bytes) + " bytes");
    std::vector<MatrixPair> pairs;
    std::vector<NorMuonMatrix> scaled;
    for (size_t i = 0; i < matrices.size(); ++i) {
      const UpdateMatrix& m = matrices[i];
      if (sits_out(m)) continue;
      void* const o = options.normuon ? scratch + static_cast<int64_t>(i) * o_bytes : m.matrix;
      pairs.push_back({m.matrix, o, m.gram_error});
      scaled.push_back({static_cast<const float*>(o), m.variance, m.matrix});
    }
    const Dtype output = options.normuon ? Dtype::kF32 : options.wire;
    newton_schulz({elementwise_, pool_, form_of(shape)}, {options.coefficients, 0, options.wire, output}, shape, pairs,
                  rest);
    if (options.normuon) normuon(elementwise_, pool_, {*options.normuon, options.wire, shape, scaled, rest});
  }

  void sum_squares(Dtype dtype, std::span<const ValueBlock> blocks, int64_t* words) override {
    check_dtype(dtype, "values");
    while (!blocks.empty()) {
      const int64_t number = blocks[0].number;
      size_t count = 1;
      while (count < blocks.size() && blocks[count].number == number) ++count;
      add_squares(dtype, blocks.first(count), words + number * SumOfSquares::kWords);
      blocks = blocks.subspan(count);
    }
  }

  void find_non_finite(Dtype dtype, std::span<const ValueBlock> blocks, int64_t* found) override {
    check_dtype(dtype, "values");
    each_piece(pool_, blocks, cut_of<ValueBlock>, [&](const ValueBlock& block, const Piece& piece, int) {
      if (block.data == nullptr || sits_out(block)) return;
      for (int64_t i = 0; i < piece.rows; ++i) {
        if (elementwise_.all_finite(dtype, row_of(dtype, block, piece, i), piece.columns)) continue;
        std::atomic_ref(found[block.number]).store(1, std::memory_order_relaxed);
      }
    });
  }

  void fingerprint(Dtype dtype, std::span<const FingerprintRange> ranges, int64_t* words, int64_t total) override {
    check_dtype(dtype, "values");
    each_piece(pool_, ranges, cut_of_range<FingerprintRange>, [&](const auto& range, const Piece& piece, int) {
      if (range.data == nullptr) return;
      const void* const data = base::offset_by(range.data, piece.column, byte_size(dtype));
      const uint64_t sum = elementwise_.fingerprint(dtype, data, piece.columns, piece.column);
      const auto add = [](int64_t& word, uint64_t value) {
        std::atomic_ref(word).fetch_add(static_cast<int64_t>(value), std::memory_order_relaxed);
      };
      add(words[range.word], sum * range.factor);
      add(words[total], sum * range.total_factor);
    });
  }

  void zero_non_finite(Dtype dtype, std::span<const ValueBlock> blocks) override {
    check_dtype(dtype, "values");
    each_piece(pool_, blocks, cut_of<ValueBlock>, [&](const ValueBlock& block, const Piece& piece, int) {
      if (block.data == nullptr || sits_out(block)) return;
      for (int64_t i = 0; i < piece.rows; ++i) {
        elementwise_.zero_non_finite(dtype, const_cast<void*>(row_of(dtype, block, piece, i)), piece.columns);
      }
    });
  }

 private:
  // All blocks have one number, whose sum begins at `words`.
  void add_squares(Dtype dtype, std::span<const ValueBlock> blocks, int64_t* words) {
    std::vector<SumOfSquares> sums(static_cast<size_t>(pool_.threads()));
    each_piece(pool_, blocks, cut_of<ValueBlock>, [&](const ValueBlock& block, const Piece& piece, int thread) {
      if (block.data == nullptr || sits_out(block)) return;
      SumOfSquares& mine = sums[static_cast<size_t>(thread)];
      const void* data = row_of(dtype, block, piece, 0);
      if (dtype == Dtype::kF32) {
        mine.add(static_cast<const float*>(data), piece.rows, piece.columns, block.stride);
      } else {
        mine.add_bf16(static_cast<const uint16_t*>(data), piece.rows, piece.columns, block.stride);
      }
    });
    for (const SumOfSquares& part : sums) {
      for (int i = 0; i < SumOfSquares::kWords; ++i) words[i] += part.words()[static_cast<size_t>(i)];
    }
  }

  template <typename Block>
  static Cut cut_of(const Block& block) {
    return Cut(block.rows, block.columns);
  }
  template <typename Range>
  static Cut cut_of_range(const Range& range) {
    return Cut(1, range.count);
  }

  static const void* row_of(Dtype dtype, const ValueBlock& block, const Piece& piece, int64_t row) {
    return base::offset_by(block.data, (piece.row + row) * block.stride + piece.column, byte_size(dtype));
  }

  const Elementwise& elementwise_;
  ThreadPool pool_;
};

}  // namespace

std::unique_ptr<Kernels> make_kernels(const CpuOptions& options, const Elementwise& elementwise) {
  return std::make_unique<CpuKernels>(options, elementwise);
}

}  // namespace cpu

LineAxis line_axis(NormAxis axis, int64_t rows, int64_t columns) {
  if (axis == NormAxis::kLonger) return columns > rows ? LineAxis::kColumns : LineAxis::kRows;
  return axis == NormAxis::kColumns ? LineAxis::kColumns : LineAxis::kRows;
}

std::unique_ptr<Kernels> make_cpu_kernels(const CpuOptions& options) {
  return cpu::make_kernels(options, cpu::best_elementwise());
}

}  // namespace muster::kernels
