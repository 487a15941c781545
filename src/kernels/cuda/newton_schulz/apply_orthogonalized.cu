#include <algorithm>
#include <numeric>

#include "kernels/cuda/elementwise/weight_forms.cuh"
#include "kernels/cuda/newton_schulz/apply_orthogonalized.h"
#include "kernels/cuda/newton_schulz/vector8.cuh"

namespace muster::kernels::cuda {

namespace {

constexpr int kOrthogonalizedChunk = 2 * kChunk;  // the norm factor is computed once per chunk

struct OrthogonalizedOptions {
  ApplyOptions apply;
  LineAxis axis;
  int norm_count;
};

struct OrthogonalizedBlock {
  int64_t rows;
  int64_t columns;
  const void* o;
  int64_t pitch;
  const float* inverses;      // from the block's first line on; null: O is not scaled
  const SquaredNorms* norms;  // of the matrix
  WeightBlock weight;
  double scale;
  double multiplier;
  const int32_t* active;
  RowFactors row_factors;
};

// Blocks whose rows have factors of their own cannot be flattened.
bool dense(const OrthogonalizedBlock& b) {
  return b.inverses == nullptr && b.pitch == b.columns && b.weight.stride == b.columns &&
         b.weight.row_index_stride == b.columns;
}

template <typename T, WeightForm kForm, Decay kDecay, bool kScaled>
struct OrthogonalizedBody {
  using Weight = WeightOperand<kForm>;
  template <int N>
  struct Values {
    T o[N];
    float inverse[N];
    typename Weight::template Values<N> weight;
  };

  Operand<const T> o;
  const float* inverses;  // from the chunk's first line on
  Weight weight;
  RowFactors row_factors;
  float step;
  float keep;
  float norm;  // the matrix's norm_factor()
  bool by_column;
  bool rounds;

  __device__ OrthogonalizedBody(const OrthogonalizedOptions& options, const OrthogonalizedBlock& block,
                                const Chunk& chunk)
      : o(static_cast<const T*>(block.o), block.pitch, chunk),
        inverses(block.inverses),
        weight(block.weight, options.apply.rounding, chunk),
        row_factors(block.row_factors),
        step(static_cast<float>(cpu::read(options.apply.rates).lr * block.multiplier * block.scale)),
        keep(cpu::kept(cpu::read(options.apply.rates), block.multiplier)),
        norm(1),
        by_column(options.axis == LineAxis::kColumns),
        rounds(options.apply.wire == Dtype::kBf16) {
    if (inverses == nullptr) return;
    inverses += by_column ? chunk.column : chunk.row;
    norm = norm_factor(block.norms, options.norm_count);
  }

  template <int N>
  __device__ bool aligned(const Chunk& chunk) const {
    const bool lines = !by_column || reinterpret_cast<uintptr_t>(inverses) % (N * sizeof(float)) == 0;
    return lines && o.template aligned<N>(chunk) && weight.template aligned<N>(chunk);
  }
  template <int N>
  __device__ void read(Place p, Values<N>& v) const {
    read_once(v.o, o.at(p));
    weight.read(p, v.weight);
    if (inverses != nullptr && by_column) {
      cuda::read(v.inverse, inverses + p.column);
    } else {
      const float inverse = inverses == nullptr ? 1.0F : inverses[p.row];
#pragma unroll
      for (int i = 0; i < N; ++i) v.inverse[i] = inverse;
    }
  }
  template <int N>
  __device__ void write(Place p, Values<N>& v) const {
    const ElementFactors<N, kScaled> row_scales(row_factors, weight.index(p));
    weight.write(p, v.weight, [&](int i, float w) {
      // The same bits as write_wire(): other ranks get this update from the wire.
      float u = to_float(v.o[i]) * (norm * v.inverse[i]);
      if (rounds) u = to_float(from_float<__nv_bfloat16>(u));
      return row_scales.scaled(i, cpu::decayed<kDecay>(w, u * step, keep));
    });
  }
};

// A row of weights without its first elements.
WeightBlock after(const WeightBlock& weight, WeightForm form, int64_t elements) {
  const auto advanced = [&](void* data, int64_t width) -> void* {
    return data == nullptr ? nullptr : static_cast<std::byte*>(data) + elements * width;
  };
  WeightBlock rest = weight;
  rest.data = advanced(weight.data, form == WeightForm::kF32 ? 4 : 2);
  rest.extra = advanced(weight.extra, form == WeightForm::kBf16Master ? 4 : 2);
  rest.first_index += elements;
  return rest;
}

}  // namespace

std::optional<std::vector<MatrixBlock>> matrix_blocks(const OrthogonalizeBatch& batch, const ApplyOptions& options,
                                                      std::span<const ApplyBlock> blocks) {
  const int64_t width = options.wire == Dtype::kF32 ? 4 : 2;
  const MatrixShape shape = batch.shape;
  const auto start = [&](size_t matrix) { return address(batch.matrices[matrix].matrix); };
  std::vector<size_t> by_address(batch.matrices.size());
  std::iota(by_address.begin(), by_address.end(), size_t{0});
  std::sort(by_address.begin(), by_address.end(), [&](size_t a, size_t b) { return start(a) < start(b); });
  std::vector<MatrixBlock> out;
  out.reserve(blocks.size());
  for (const ApplyBlock& block : blocks) {
    if (block.rows == 0 || block.columns == 0) continue;
    // The last matrix that starts at or before the update.
    const auto next = std::upper_bound(by_address.begin(), by_address.end(), address(block.update),
                                       [&](int64_t update, size_t matrix) { return update < start(matrix); });
    if (next == by_address.begin()) return std::nullopt;
    const size_t matrix = *(next - 1);
    const int64_t bytes = address(block.update) - start(matrix);
    const int64_t first = bytes / width;
    const int64_t stride = block.rows == 1 ? 0 : block.update_stride;
    const int64_t end = first + (block.rows - 1) * stride + block.columns;
    if (bytes % width != 0 || end > shape.rows * shape.columns) return std::nullopt;
    const int64_t column = first % shape.columns;
    if (column + block.columns <= shape.columns && (block.rows == 1 || stride == shape.columns)) {
      out.push_back({matrix, first / shape.columns, column, block});
      continue;
    }
    if (block.rows > 1) return std::nullopt;
    // One row of elements that spans several rows of the matrix: the end of one, whole ones, the beginning of one.
    for (int64_t done = 0; done < block.columns;) {
      const int64_t left = block.columns - done;
      const int64_t from = (first + done) % shape.columns;
      MatrixBlock& piece = out.emplace_back(MatrixBlock{matrix, (first + done) / shape.columns, from, block});
      const bool whole = from == 0 && left >= shape.columns;
      piece.block.rows = whole ? left / shape.columns : 1;
      piece.block.columns = whole ? shape.columns : std::min(left, shape.columns - from);
      piece.block.weight = after(block.weight, options.form, done);
      piece.block.weight.stride = shape.columns;
      piece.block.weight.row_index_stride = shape.columns;
      done += piece.block.rows * piece.block.columns;
    }
  }
  return out;
}

void apply(const ApplyOptions& options, const Orthogonalized& orthogonalized, std::span<const MatrixBlock> blocks,
           LaunchQueue& queue) {
  const Matrices& o = orthogonalized.o;
  const LineFactors& factors = orthogonalized.factors;
  const OrthogonalizedOptions all{options, orthogonalized.axis, factors.norm_count};
  with_half(orthogonalized.type, [&]<typename T>(Type<T>) {
    std::vector<OrthogonalizedBlock> own;
    own.reserve(blocks.size());
    for (const MatrixBlock& b : blocks) {
      if (b.matrix < orthogonalized.first || b.matrix >= orthogonalized.first + orthogonalized.count) continue;
      const auto m = static_cast<int64_t>(b.matrix - orthogonalized.first);
      const int64_t line = m * factors.lines + (orthogonalized.axis == LineAxis::kRows ? b.row : b.column);
      const bool scaled = factors.inverses != nullptr;
      own.push_back({.rows = b.block.rows,
                     .columns = b.block.columns,
                     .o = static_cast<const T*>(o.data) + m * o.stride + b.row * o.pitch + b.column,
                     .pitch = o.pitch,
                     .inverses = scaled ? factors.inverses + line : nullptr,
                     .norms = scaled ? factors.norms + m * factors.norm_count : nullptr,
                     .weight = b.block.weight,
                     .scale = b.block.scale,
                     .multiplier = b.block.multiplier,
                     .active = b.block.active,
                     .row_factors = b.block.row_factors});
    }
    with_form(options.form, [&]<WeightForm kForm>(Value<kForm>) {
      with_decay(options.decay, [&]<Decay kDecay>(Value<kDecay>) {
        with_scaled(std::span<const OrthogonalizedBlock>(own), [&]<bool kScaled>(Value<kScaled>) {
          using Body = OrthogonalizedBody<T, kForm, kDecay, kScaled>;
          enqueue("apply orthogonalized",
                  elementwise_kernel<Body, OrthogonalizedOptions, OrthogonalizedBlock, kOrthogonalizedChunk>, all, own,
                  queue);
        });
      });
    });
  });
}

}  // namespace muster::kernels::cuda
