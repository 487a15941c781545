#include "kernels/cuda/newton_schulz/orthogonalizer.h"

#include <algorithm>
#include <array>
#include <bit>
#include <string>
#include <utility>

#include "base/alignment.h"
#include "kernels/cuda/newton_schulz/cuda_cublas.h"
#include "kernels/cuda/newton_schulz/spectral_cap.h"
#include "kernels/cuda/newton_schulz/wire_batch.h"
#include "muster/error.h"

namespace muster::kernels::cuda {

namespace {

constexpr int64_t kAlign = 256;
constexpr size_t kMostAnalyzed = 16;

int64_t align(int64_t bytes) { return base::round_up(bytes, kAlign); }

// The workspace of a batch, cut into buffers. With a null pointer as `base`, only `bytes` means anything.
struct Buffers {
  Buffers(const OrthogonalizeOptions& options, const Iterates& iterates, bool x_on_wire, char* base)
      : end_(address(base)) {
    const int64_t x_elements = iterates.shape.rows * pitch_of(iterates.shape.columns);
    const int64_t batch = iterates.batch;
    const int64_t n = iterates.n();
    for (size_t i = x_on_wire ? 1 : 0; i < x.size(); ++i) x[i] = take<uint16_t>(batch * x_elements);
    // The cap is over before there are Gram matrices, so it uses their memory.
    const int64_t grams_begin = end_;
    cap = take_cap_buffers(iterates.shape, batch, [&](int64_t taken) { return take<char>(taken); });
    const int64_t cap_end = std::exchange(end_, grams_begin);
    for (int i = 0; i < grams_of(iterates.form); ++i) {
      grams[static_cast<size_t>(i)] = take<uint16_t>(batch * n * pitch_of(n));
    }
    end_ = std::max(end_, cap_end);
    norms.sums = take<double>(batch * norm_sums(iterates.shape));
    norms.scalars = take<FirstScalars>(batch);
    norms.factors = take<float>(batch);
    if (options.normuon.has_value()) {
      const LineSums sums{options.normuon->axis, iterates.shape, batch};
      lines = take<float>(batch * std::max(n, sums.lines()));
      normuon.inverses = lines;  // rescaling is over by then
      normuon.squares = take<float>(batch * sums.parts() * sums.lines());
      normuon.norms = take<SquaredNorms>(batch * sums.norms());
    } else {
      lines = take<float>(batch * n);
    }
    bytes = end_ - address(base);
  }

  std::array<void*, 2> x{};
  std::array<void*, 4> grams{};
  CapBuffers cap;
  NormBuffers norms;
  float* lines = nullptr;
  NorMuonBuffers normuon;
  int64_t bytes = 0;

 private:
  template <typename T>
  T* take(int64_t count) {
    auto* const taken = reinterpret_cast<T*>(end_);
    end_ += align(count * static_cast<int64_t>(sizeof(T)));
    return taken;
  }

  int64_t end_;
};

int64_t workspace_bytes(const OrthogonalizeOptions& options, Form form, MatrixShape shape, int64_t count,
                        bool x_on_wire) {
  return Buffers(options, {.form = form, .shape = shape, .batch = count}, x_on_wire, nullptr).bytes;
}

// True if the iterations can use the matrices themselves as X, given their spacing.
bool may_be_x(const OrthogonalizeOptions& options, MatrixShape shape) {
  return options.wire == Dtype::kBf16 && shape.columns % 8 == 0;
}

// The distance between consecutive matrices, in elements; 0 if they are not equally far apart or not aligned for TMA.
int64_t spacing_of(std::span<const UpdateMatrix> batch, MatrixShape shape) {
  const auto at = [&](size_t i) { return reinterpret_cast<int64_t>(batch[i].matrix); };
  const int64_t size = shape.rows * shape.columns * 2;
  const int64_t step = batch.size() == 1 ? size : at(1) - at(0);
  if (at(0) % 16 != 0 || step % 16 != 0 || step < size) return 0;
  for (size_t i = 2; i < batch.size(); ++i) {
    if (at(i) - at(i - 1) != step) return 0;
  }
  return step / 2;
}

// The matrices of a batch that go through the steps together.
class Batch {
 public:
  Batch(const OrthogonalizeOptions& options, Form form, MatrixShape shape, std::span<const UpdateMatrix> matrices,
        LaunchQueue& queue)
      : options_(options), form_(form), shape_(shape), matrices_(matrices), queue_(queue) {}

  // `spacing`: the distance between the matrices if they are X themselves, else 0.
  Orthogonalized run(Cublas* cublas, double safety, int64_t spacing, char* scratch) const {
    Iterates iterates{.cublas = cublas, .form = form_, .shape = shape_, .batch = count()};
    Buffers buffers(options_, iterates, spacing > 0, scratch);
    NormBuffers& norms = buffers.norms;
    NorMuonBuffers& normuon = buffers.normuon;
    const int64_t pitch = pitch_of(shape_.columns);
    for (size_t i = 0; i < 2; ++i) {
      iterates.x[i] = {buffers.x[i], shape_.rows, shape_.columns, pitch, shape_.rows * pitch};
    }
    if (spacing > 0) {
      iterates.x[0].data = matrices_[0].matrix;
      iterates.x[0].stride = spacing;
    }
    iterates.grams = buffers.grams;
    norms.settings = queue_.upload(NormSettings{safety, options_.coefficients.steps.front()});
    iterates.scalars = norms.scalars;
    iterates.safety = &norms.settings->safety;
    iterates.lines = buffers.lines;
    // Our last GEMM can sum the squares of rows on the way.
    const bool gemm_sums_rows =
        options_.normuon.has_value() && options_.normuon->axis == LineAxis::kRows && cublas == nullptr;
    if (gemm_sums_rows) iterates.row_squares = normuon.squares;

    // The standard form reads X from the wire if the GEMMs can.
    WireBatch wire = wire_batch(queue_.upload(matrices_));
    wire.is_x = spacing > 0 && form_ == Form::kStandard;
    find_norms(wire, norms, queue_);
    if (!wire.is_x) load_x(wire, norms.factors, iterates.x[0], queue_);
    const int sketch = options_.coefficients.sketch;
    if (sketch > 0) cap_spectrum(sketch, iterates, norms.settings, buffers.cap, queue_);
    Orthogonalized out;
    out.count = matrices_.size();
    out.matrices = wire.matrices;
    out.type = half_of(form_);
    out.o = iterates.x[static_cast<size_t>(newton_schulz(options_.coefficients, iterates, queue_))];
    if (std::ranges::any_of(matrices_, [](const UpdateMatrix& m) { return m.gram_error != nullptr; })) {
      measure_gram_error(iterates, out.o, wire.matrices, queue_);
    }
    if (options_.normuon.has_value()) {
      const LineSums sums{options_.normuon->axis, shape_, count()};
      if (!gemm_sums_rows) sum_lines(out.type, out.o, sums, normuon.squares, queue_);
      normuon.matrices = wire.matrices;
      normuon.options = queue_.upload(*options_.normuon);
      advance_variances(sums, normuon, queue_);
      out.axis = sums.axis;
      out.factors = {normuon.inverses, normuon.norms, static_cast<int>(sums.lines()), static_cast<int>(sums.norms())};
    }
    return out;
  }

  // All inputs of run() that can change from call to call, for LaunchQueue::memoize().
  void name_inputs(int64_t spacing, const void* scratch, std::vector<int64_t>& inputs) const {
    const auto name = [&](auto... values) { (inputs.push_back(std::bit_cast<int64_t>(values)), ...); };
    const Coefficients& c = options_.coefficients;
    name(wire_batch(nullptr).kind(), shape_.rows, shape_.columns, spacing, scratch, c.safety,
         static_cast<int64_t>(c.rescale), static_cast<int64_t>(c.sketch), c.steps.size(),
         static_cast<int64_t>(options_.normuon.has_value()));
    for (const Coefficients::Step& step : c.steps) name(step.a, step.b, step.c);
    if (const auto& normuon = options_.normuon) name(static_cast<int64_t>(normuon->axis), normuon->beta2, normuon->eps);
    for (const UpdateMatrix& m : matrices_) name(m.matrix, m.variance, m.active, m.gram_error);
  }

  // Replaces the matrices by what run() returned.
  void write_back(const Orthogonalized& orthogonalized) const {
    const bool already_there = orthogonalized.o.data == matrices_[0].matrix && form_ == Form::kStandard;
    if (already_there && !options_.normuon.has_value()) return;
    write_wire(wire_batch(orthogonalized.matrices), orthogonalized, queue_);
  }

 private:
  int64_t count() const { return static_cast<int64_t>(matrices_.size()); }
  WireBatch wire_batch(const UpdateMatrix* on_device) const {
    return {.matrices = on_device, .count = count(), .shape = shape_, .wire = options_.wire, .form = form_};
  }

  const OrthogonalizeOptions& options_;
  const Form form_;
  const MatrixShape shape_;
  const std::span<const UpdateMatrix> matrices_;
  LaunchQueue& queue_;
};

}  // namespace

int64_t best_batch_size(MatrixShape shape, int multiprocessors) {
  constexpr int64_t kSmall = 1024;
  constexpr int64_t kTile = 128;
  constexpr int64_t kMostBytes = int64_t{1} << 29;
  const int64_t n = std::min(shape.rows, shape.columns);
  if (n == 0) return 1;
  const int64_t down = (n + kTile - 1) / kTile;
  const int64_t tiles = down * (down + 1) / 2;
  const int64_t waves = n <= kSmall ? 4 : 16;
  const int64_t grams = long_enough_for_gram(shape) ? grams_of(Form::kGram) : grams_of(Form::kStandard);
  const int64_t bytes = 2 * (shape.rows * shape.columns + grams * n * n);
  return std::max<int64_t>(1, std::min(waves * multiprocessors / tiles, kMostBytes / bytes));
}

Orthogonalizer::Orthogonalizer(int device, Gemms gemms) {
  if (gemms == Gemms::kCublas || !gemm_available(device)) cublas_ = std::make_unique<Cublas>();
}

Orthogonalizer::~Orthogonalizer() = default;

const Orthogonalizer::Analysis& Orthogonalizer::analysis(const Coefficients& coefficients) const {
  for (const Analysis& analysis : analyses_) {
    const Coefficients& c = analysis.coefficients;
    if (c.safety == coefficients.safety && c.rescale == coefficients.rescale && c.steps == coefficients.steps) {
      return analysis;
    }
  }
  if (analyses_.size() >= kMostAnalyzed) analyses_.clear();
  return analyses_.emplace_back(Analysis{coefficients, half_safety(coefficients), tolerates_gram(coefficients)});
}

int64_t Orthogonalizer::lent_bytes() const { return cublas_ == nullptr ? 0 : align(Cublas::kLaneBytes); }

void Orthogonalizer::lend(std::byte* memory, cudaStream_t stream) {
  if (cublas_ != nullptr) cublas_->lend(memory, stream);
}

void Orthogonalizer::give_back() noexcept {
  if (cublas_ != nullptr) cublas_->give_back();
}

int64_t Orthogonalizer::call_pattern(const Coefficients& coefficients) const {
  const auto rescale = static_cast<int64_t>(coefficients.rescale);
  return std::ssize(coefficients.steps) << 10 | static_cast<int64_t>(coefficients.sketch) << 3 | rescale << 1 |
         (analysis(coefficients).tolerates_gram ? 1 : 0);
}

int64_t Orthogonalizer::workspace(MatrixShape shape, int64_t count, const OrthogonalizeOptions& options) const {
  if (count == 0 || shape.rows == 0 || shape.columns == 0) return 0;
  const Form form = long_enough_for_gram(shape) ? Form::kGram : Form::kStandard;  // the larger of those possible
  return std::max(workspace_bytes(options, form, shape, 1, false),
                  workspace_bytes(options, form, shape, count, may_be_x(options, shape)));
}

void Orthogonalizer::run(const OrthogonalizeBatch& batch, LaunchQueue& queue, const Use& use) {
  const auto& options = batch.options;
  const MatrixShape shape = batch.shape;
  const auto& matrices = batch.matrices;
  if (matrices.empty() || shape.rows == 0 || shape.columns == 0) return;
  if (options.coefficients.steps.empty()) throw InvalidArgument("coefficients: no steps");
  const int sketch = options.coefficients.sketch;
  if (!is_sketch(sketch) || (sketch != 0 && options.coefficients.rescale != Coefficients::Rescale::kGram)) {
    throw InvalidArgument("coefficients: sketch " + std::to_string(sketch) + " does not fit the rescaling");
  }
  constexpr int64_t kMostElements = int64_t{1} << 33;  // vectors of eight have 32-bit numbers
  if (shape.rows * pitch_of(shape.columns) > kMostElements) {
    throw InvalidArgument("orthogonalize: " + std::to_string(shape.rows) + "x" + std::to_string(shape.columns) +
                          " has too many elements");
  }
  const int64_t least = workspace(shape, 1, options);
  if (batch.workspace.bytes < least) {
    throw InvalidArgument("orthogonalize: workspace of " + std::to_string(batch.workspace.bytes) + " bytes, expected " +
                          std::to_string(least));
  }
  const Analysis& analysis = this->analysis(options.coefficients);
  const Form form = long_enough_for_gram(shape) && analysis.tolerates_gram ? Form::kGram : Form::kStandard;
  const int64_t spacing = may_be_x(options, shape) ? spacing_of(matrices, shape) : 0;
  const auto bytes = [&](int64_t count) { return workspace_bytes(options, form, shape, count, spacing > 0); };
  constexpr size_t kMostTogether = 1 << 15;  // a dimension of a CUDA grid is at most twice that
  auto room = static_cast<int64_t>(std::min(matrices.size(), kMostTogether));
  if (bytes(room) > batch.workspace.bytes) room = std::max<int64_t>(1, batch.workspace.bytes / bytes(1));
  auto* const scratch = static_cast<char*>(batch.workspace.data);
  for (size_t begin = 0; begin < matrices.size(); begin += static_cast<size_t>(room)) {
    const size_t count = std::min(static_cast<size_t>(room), matrices.size() - begin);
    const Batch part(options, form, shape, matrices.subspan(begin, count), queue);
    inputs_.clear();
    part.name_inputs(spacing, scratch, inputs_);
    Orthogonalized orthogonalized = queue.memoize<Orthogonalized>(
        inputs_, [&] { return part.run(cublas_.get(), analysis.safety, spacing, scratch); });
    orthogonalized.first = begin;
    use ? use(orthogonalized) : part.write_back(orthogonalized);
  }
}

}  // namespace muster::kernels::cuda
