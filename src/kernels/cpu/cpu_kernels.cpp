#include "kernels/cpu/cpu_kernels.h"

#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

#include "kernels/cpu/normuon.h"
#include "kernels/cpu/orthogonalize.h"
#include "kernels/cpu/pieces.h"
#include "kernels/cpu/thread_pool.h"
#include "muster/error.h"

namespace muster::kernels {
namespace cpu {
namespace {

int64_t weight_bytes(WeightForm form) { return form == WeightForm::kF32 ? 4 : 2; }
int64_t extra_bytes(WeightForm form) { return form == WeightForm::kBf16Master ? 4 : 2; }

template <typename T>
T* advance(T* pointer, int64_t bytes) {
  using Char = std::conditional_t<std::is_const_v<T>, const char, char>;
  return pointer == nullptr ? nullptr : static_cast<T*>(static_cast<Char*>(pointer) + bytes);
}

WeightBlock part_of(const WeightBlock& weight, WeightForm form, const Piece& piece) {
  WeightBlock part = weight;
  const int64_t offset = piece.row * weight.stride + piece.column;
  part.data = advance(weight.data, offset * weight_bytes(form));
  part.extra = advance(weight.extra, offset * extra_bytes(form));
  part.first_index += piece.row * weight.row_index_stride + piece.column;
  return part;
}

ElementRange part_of(const ElementRange& range, Dtype grad, WeightForm form, const Piece& piece) {
  ElementRange part = range;
  part.count = piece.columns;
  part.grad = advance(range.grad, piece.column * byte_size(grad));
  part.first = range.first == nullptr ? nullptr : range.first + piece.column;
  part.second = range.second == nullptr ? nullptr : range.second + piece.column;
  part.weight = part_of(range.weight, form, piece);
  return part;
}

void check_dtype(Dtype dtype, const char* what) {
  if (dtype == Dtype::kF16) throw InvalidArgument(std::string(what) + ": f16: the CPU knows f32 and bf16");
}

class CpuKernels final : public Kernels {
 public:
  CpuKernels(const CpuOptions& options, const Elementwise& elementwise)
      : elementwise_(elementwise), pool_(options.threads) {}

  void momentum_pack(const MomentumOptions& options, std::span<const MomentumBlock> blocks) override {
    check_dtype(options.grad, "gradient");
    check_dtype(options.momentum, "momentum");
    check_dtype(options.wire, "wire");
    each_piece(pool_, blocks, cut_of<MomentumBlock>, [&](const MomentumBlock& block, const Piece& piece, int) {
      MomentumBlock part = block;
      part.rows = piece.rows;
      part.columns = piece.columns;
      const auto offset = [&](int64_t stride) { return piece.row * stride + piece.column; };
      part.grad = advance(block.grad, offset(block.grad_stride) * byte_size(options.grad));
      part.momentum = advance(block.momentum, offset(block.momentum_stride) * byte_size(options.momentum));
      part.update = advance(block.update, offset(block.update_stride) * byte_size(options.wire));
      elementwise_.momentum_pack(options, part);
    });
  }

  void apply(const ApplyOptions& options, std::span<const ApplyBlock> blocks) override {
    check_dtype(options.wire, "wire");
    each_piece(pool_, blocks, cut_of<ApplyBlock>, [&](const ApplyBlock& block, const Piece& piece, int) {
      ApplyBlock part = block;
      part.rows = piece.rows;
      part.columns = piece.columns;
      const int64_t offset = piece.row * block.update_stride + piece.column;
      part.update = advance(block.update, offset * byte_size(options.wire));
      part.weight = part_of(block.weight, options.form, piece);
      elementwise_.apply(options, part);
    });
  }

  void adamw(const AdamWOptions& options, std::span<const ElementRange> ranges) override {
    check_dtype(options.grad, "gradient");
    each_piece(pool_, ranges, cut_of_range, [&](const ElementRange& range, const Piece& piece, int) {
      elementwise_.adamw(options, part_of(range, options.grad, options.form, piece));
    });
  }

  void lion(const LionOptions& options, std::span<const ElementRange> ranges) override {
    check_dtype(options.grad, "gradient");
    each_piece(pool_, ranges, cut_of_range, [&](const ElementRange& range, const Piece& piece, int) {
      elementwise_.lion(options, part_of(range, options.grad, options.form, piece));
    });
  }

  int64_t side_by_side() const override { return pool_.threads(); }

  int64_t orthogonalize_workspace(MatrixShape shape, int64_t batch) const override {
    return std::min<int64_t>(batch, pool_.threads()) * orthogonalize_matrix_bytes(form_of(shape), shape);
  }

  void orthogonalize(const OrthogonalizeOptions& options, MatrixShape shape, std::span<const MatrixPair> batch,
                     Workspace workspace) override {
    check_dtype(options.input, "update");
    check_dtype(options.output, "orthogonalized update");
    cpu::orthogonalize({elementwise_, pool_, form_of(shape)}, options, shape, batch, workspace);
  }

  int64_t normuon_workspace(MatrixShape shape, int64_t batch) const override {
    return batch * normuon_matrix_bytes(shape);
  }

  void normuon(const NorMuonOptions& options, MatrixShape shape, std::span<const NorMuonMatrix> batch,
               Workspace workspace) override {
    check_dtype(options.wire, "wire");
    cpu::normuon(elementwise_, pool_, options, shape, batch, workspace);
  }

  void sum_squares(Dtype dtype, std::span<const ValueBlock> blocks, SumOfSquares& sum) override {
    check_dtype(dtype, "values");
    std::vector<SumOfSquares> sums(static_cast<size_t>(pool_.threads()));
    each_piece(pool_, blocks, cut_of<ValueBlock>, [&](const ValueBlock& block, const Piece& piece, int thread) {
      SumOfSquares& mine = sums[static_cast<size_t>(thread)];
      const void* data = row_of(dtype, block, piece, 0);
      if (dtype == Dtype::kF32) {
        mine.add(static_cast<const float*>(data), piece.rows, piece.columns, block.stride);
      } else {
        mine.add_bf16(static_cast<const uint16_t*>(data), piece.rows, piece.columns, block.stride);
      }
    });
    for (const SumOfSquares& part : sums) sum.merge(part);
  }

  bool all_finite(Dtype dtype, std::span<const ValueBlock> blocks) override {
    check_dtype(dtype, "values");
    std::atomic<bool> finite{true};
    each_piece(pool_, blocks, cut_of<ValueBlock>, [&](const ValueBlock& block, const Piece& piece, int) {
      for (int64_t i = 0; i < piece.rows; ++i) {
        if (!elementwise_.all_finite(dtype, row_of(dtype, block, piece, i), piece.columns)) finite = false;
      }
    });
    return finite;
  }

  void zero_non_finite(Dtype dtype, std::span<const ValueBlock> blocks) override {
    check_dtype(dtype, "values");
    each_piece(pool_, blocks, cut_of<ValueBlock>, [&](const ValueBlock& block, const Piece& piece, int) {
      for (int64_t i = 0; i < piece.rows; ++i) {
        elementwise_.zero_non_finite(dtype, const_cast<void*>(row_of(dtype, block, piece, i)), piece.columns);
      }
    });
  }

 private:
  template <typename Block>
  static Cut cut_of(const Block& block) {
    return Cut(block.rows, block.columns);
  }
  static Cut cut_of_range(const ElementRange& range) { return Cut(1, range.count); }

  static const void* row_of(Dtype dtype, const ValueBlock& block, const Piece& piece, int64_t row) {
    return advance(block.data, ((piece.row + row) * block.stride + piece.column) * byte_size(dtype));
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

bool cpu_available() { return true; }

std::unique_ptr<Kernels> make_cpu_kernels(const CpuOptions& options) {
  return cpu::make_kernels(options, cpu::best_elementwise());
}

}  // namespace muster::kernels
