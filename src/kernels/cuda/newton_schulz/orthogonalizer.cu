#include <algorithm>
#include <bit>
#include <string>

#include "kernels/cuda/elementwise/vector8.cuh"
#include "kernels/cuda/newton_schulz/cuda_cublas.h"
#include "kernels/cuda/newton_schulz/orthogonalizer.h"
#include "muster/error.h"

namespace muster::kernels::cuda {

namespace {

constexpr int64_t kAlign = 256;
constexpr int kThreads = 256;
constexpr int kUnrolled = 4;                          // octets a thread has under way
constexpr int kBlockOctets = kThreads * kUnrolled;    // of a block of the loops below
constexpr int64_t kSlab = 2 * kBlockOctets * kOctet;  // elements of one partial sum of the norm
constexpr size_t kMostKnown = 16;

int64_t align(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }
int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// How a matrix lies on the wire and in octets of its rows, which are padded.
struct Octets {
  int columns;
  int across;  // octets of a row
  int count;   // of a matrix

  explicit Octets(MatrixShape shape)
      : columns(static_cast<int>(shape.columns)),
        across(static_cast<int>(pitch_of(shape.columns) / kOctet)),
        count(static_cast<int>(shape.rows * across)) {}

  __device__ int row(int octet) const {
    return static_cast<int>(static_cast<unsigned>(octet) / static_cast<unsigned>(across));
  }
  __device__ int column(int octet, int row) const { return (octet - row * across) * kOctet; }
};

// Squares of one slab of one matrix.
template <typename In>
__global__ void sum_slabs(const UpdateMatrix* matrices, int64_t elements, double* sums) {
  const auto* const x = static_cast<const In*>(matrices[blockIdx.y].matrix);
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kSlab + threadIdx.x * kOctet;
  double sum = 0;
  const auto add = [&](const Octet& octet) {
#pragma unroll
    for (int i = 0; i < kOctet; ++i) sum += static_cast<double>(octet.v[i]) * static_cast<double>(octet.v[i]);
  };
  constexpr int64_t kStride = kThreads * kOctet;
  if (on_16_bytes(x) && static_cast<int64_t>(blockIdx.x + 1) * kSlab <= elements) {
#pragma unroll
    for (int k = 0; k < kSlab / kStride; ++k) add(load_aligned(x + begin + k * kStride));
  } else {
    for (int k = 0; k < kSlab / kStride; ++k) {
      const int64_t at = begin + k * kStride;
      add(load_octet(x + at, elements - at));
    }
  }
  sum = block_sum<kThreads>(sum);
  if (threadIdx.x == 0) sums[static_cast<int64_t>(blockIdx.y) * gridDim.x + blockIdx.x] = sum;
}

// What the norm is for.
struct Settings {
  double safety = 1;
  Coefficients::Step first;
};

// A power of two that X is multiplied with. For fp16 it brings the norm to between 256 and 512, where elements of a
// bf16 wire stay exact down to 2^-25 of it; for bf16 near 1, but only where squares, and those of much smaller
// elements, might not be floats.
template <Form kForm>
__device__ float power_for(double norm) {
  constexpr int kWanted = kForm == Form::kGram ? 8 : 0;
  constexpr int kFar = 32;
  constexpr int kMost = 126;
  if (!isfinite(norm) || norm == 0) return 1;
  const int exponent = kWanted - ilogb(norm);
  if (kForm == Form::kStandard && exponent >= -kFar && exponent <= kFar) return 1;
  return ldexpf(1, max(-kMost, min(kMost, exponent)));
}

// One block a matrix: the factor for those who convert X, and the first scalars, which expect X times that factor.
// Where X is not converted, it gets that here: so rarely that one block will do.
template <Form kForm>
__global__ void find_norms(const double* sums, int slabs, const Settings* settings, float* factors,
                           FirstScalars* scalars, const UpdateMatrix* in_place, const Octets octets) {
  double sum = 0;
  for (int s = static_cast<int>(threadIdx.x); s < slabs; s += kThreads) {
    sum += sums[static_cast<int64_t>(blockIdx.x) * slabs + s];
  }
  sum = block_sum<kThreads>(sum);
  const double norm = sqrt(sum);
  const float power = power_for<kForm>(norm);
  double f = 1 / (settings->safety * norm * static_cast<double>(power));
  if (norm == 0) f = 0;
  if (isinf(norm)) f = nan("");  // not 0, with which cuBLAS would not look at X
  const auto once = static_cast<float>(f);
  if (threadIdx.x == 0) {
    factors[blockIdx.x] = power;
    const auto a = static_cast<float>(settings->first.a);
    const auto b = static_cast<float>(settings->first.b);
    const auto c = static_cast<float>(settings->first.c);
    scalars[blockIdx.x] = {{static_cast<float>(f * f), 0}, {c, b}, {1, a}, {once, once * a}};
  }
  if (in_place == nullptr || power == 1) return;
  auto* const x = static_cast<__nv_bfloat16*>(in_place[blockIdx.x].matrix);
  for (int64_t octet = threadIdx.x; octet < octets.count; octet += kThreads) {
    Octet values = load_aligned(x + octet * kOctet);
#pragma unroll
    for (int i = 0; i < kOctet; ++i) values.v[i] *= power;
    store_aligned(x + octet * kOctet, values);
  }
}

// X times its factor, in T.
template <typename In, typename T>
__global__ void convert(const UpdateMatrix* matrices, const Octets octets, const float* factors, T* to,
                        int64_t stride) {
  const float factor = factors[blockIdx.y];
  const auto* const x = static_cast<const In*>(matrices[blockIdx.y].matrix);
  T* const out = to + blockIdx.y * stride;
  const int first = static_cast<int>(blockIdx.x) * kBlockOctets + static_cast<int>(threadIdx.x);
  const auto times = [&](Octet& octet) {
#pragma unroll
    for (int i = 0; i < kOctet; ++i) octet.v[i] *= factor;
  };
  if (octets.columns % kOctet == 0 && on_16_bytes(x)) {
    Octet values[kUnrolled];
#pragma unroll
    for (int k = 0; k < kUnrolled; ++k) {
      const int64_t octet = first + k * kThreads;
      if (octet < octets.count) values[k] = load_aligned(x + octet * kOctet);
    }
#pragma unroll
    for (int k = 0; k < kUnrolled; ++k) {
      const int64_t octet = first + k * kThreads;
      times(values[k]);
      if (octet < octets.count) store_aligned(out + octet * kOctet, values[k]);
    }
    return;
  }
  for (int k = 0; k < kUnrolled; ++k) {
    const int octet = first + k * kThreads;
    if (octet >= octets.count) return;
    const int row = octets.row(octet);
    const int column = octets.column(octet, row);
    Octet values = load_octet(x + static_cast<int64_t>(row) * octets.columns + column, octets.columns - column);
    times(values);
    store_aligned(out + static_cast<int64_t>(octet) * kOctet, values);
  }
}

// What O is to be multiplied with: one factor a line, by NorMuon.
enum class Factors : uint8_t { kNone, kRows, kColumns };

// O times the factors of its lines, rounded once. apply_orthogonalized.cu does the same on the way to the weights.
template <typename T, typename Out, Factors kFactors>
__global__ void write_wire(const T* o, int64_t stride, const Octets octets, const LineFactors factors,
                           const UpdateMatrix* matrices) {
  const T* const from = o + blockIdx.y * stride;
  auto* const wire = static_cast<Out*>(matrices[blockIdx.y].matrix);
  const int first = static_cast<int>(blockIdx.x) * kBlockOctets + static_cast<int>(threadIdx.x);
  Octet values[kUnrolled];
#pragma unroll
  for (int k = 0; k < kUnrolled; ++k) {
    const int64_t octet = first + k * kThreads;
    if (octet < octets.count) values[k] = load_aligned(from + octet * kOctet);
  }
  const bool whole = octets.columns % kOctet == 0;
  const float keep =
      kFactors == Factors::kNone
          ? 1
          : kept(factors.norms + static_cast<int64_t>(blockIdx.y) * factors.norm_count, factors.norm_count);
  const float* const inverses = factors.inverses + static_cast<int64_t>(blockIdx.y) * factors.lines;
#pragma unroll
  for (int k = 0; k < kUnrolled; ++k) {
    const int octet = first + k * kThreads;
    if (octet >= octets.count) return;
    const int row = octets.row(octet);
    const int column = octets.column(octet, row);
    if constexpr (kFactors == Factors::kRows) {
      const float factor = keep * inverses[row];
#pragma unroll
      for (int i = 0; i < kOctet; ++i) values[k].v[i] *= factor;
    } else if constexpr (kFactors == Factors::kColumns) {
      const Octet inverse =
          whole ? load_aligned(inverses + column) : load_octet(inverses + column, octets.columns - column);
#pragma unroll
      for (int i = 0; i < kOctet; ++i) values[k].v[i] *= keep * inverse.v[i];
    }
    store_octet(wire + static_cast<int64_t>(row) * octets.columns + column, values[k], octets.columns - column);
  }
}

// The scratch of a batch.
struct Layout {
  Layout(Form form, const OrthogonalizeOptions& options, MatrixShape shape, int64_t batch, bool in_place) {
    const int64_t n = std::min(shape.rows, shape.columns);
    xs = in_place ? 1 : 2;
    x_bytes = align(batch * shape.rows * pitch_of(shape.columns) * 2);
    gram_bytes = align(batch * n * pitch_of(n) * 2);
    sums_bytes = align(batch * divide_up(shape.rows * shape.columns, kSlab) * 8);
    norm_bytes = align(batch * static_cast<int64_t>(sizeof(FirstScalars)));
    factor_bytes = align(batch * 4);
    line_bytes = align(batch * n * 4);
    if (options.normuon.has_value()) {
      const LineSums sums{options.normuon->axis, shape};
      square_bytes = align(batch * sums.parts() * sums.lines() * 4);
      line_norm_bytes = align(batch * norms_of(sums) * static_cast<int64_t>(sizeof(Norms)));
      line_bytes = std::max(line_bytes, align(batch * sums.lines() * 4));
    }
    total = xs * x_bytes + grams_of(form) * gram_bytes + sums_bytes + norm_bytes + factor_bytes + line_bytes +
            square_bytes + line_norm_bytes;
  }

  int xs;
  int64_t x_bytes;
  int64_t gram_bytes;
  int64_t sums_bytes;
  int64_t norm_bytes;
  int64_t factor_bytes;
  int64_t line_bytes;  // of rescaling, then inverses of NorMuon
  int64_t square_bytes = 0;
  int64_t line_norm_bytes = 0;
  int64_t total;
};

// Iterations can work in the matrices themselves: then these are X.
bool may_be_x(const OrthogonalizeOptions& options, MatrixShape shape) {
  return options.wire == Dtype::kBf16 && shape.columns % kOctet == 0;
}

// In elements; 0: they are not equally far apart, or not where the copy engine finds them.
int64_t spacing(std::span<const UpdateMatrix> batch, MatrixShape shape) {
  const auto at = [&](size_t i) { return reinterpret_cast<int64_t>(batch[i].matrix); };
  const int64_t size = shape.rows * shape.columns * 2;
  const int64_t step = batch.size() == 1 ? size : at(1) - at(0);
  if (at(0) % 16 != 0 || step % 16 != 0 || step < size) return 0;
  for (size_t i = 2; i < batch.size(); ++i) {
    if (at(i) - at(i - 1) != step) return 0;
  }
  return step / 2;
}

// Some matrices of one shape. T is what X, and the result O, are made of.
template <typename T>
class Batch {
 public:
  Batch(const OrthogonalizeOptions& options, Form form, MatrixShape shape, std::span<const UpdateMatrix> batch,
        LaunchQueue& queue)
      : options_(options), form_(form), shape_(shape), octets_(shape), batch_(batch), queue_(queue) {}

  // `apart`: how far the matrices are apart that are X themselves; 0: they are not.
  Orthogonalized run(Cublas* cublas, double safety, int64_t apart, char* scratch) {
    const int64_t count = static_cast<int64_t>(batch_.size());
    const Layout layout(form_, options_, shape_, count, apart > 0);
    const int64_t pitch = pitch_of(shape_.columns);
    const auto take = [&](int64_t bytes) {
      char* const taken = scratch;
      scratch += bytes;
      return taken;
    };
    Iterates iterates;
    iterates.cublas = cublas;
    iterates.form = form_;
    iterates.shape = shape_;
    iterates.batch = count;
    for (Matrices& x : iterates.x) {
      const bool wire = apart > 0 && &x == &iterates.x[0];
      x = {wire ? batch_[0].matrix : take(layout.x_bytes), shape_.rows, shape_.columns, pitch,
           wire ? apart : shape_.rows * pitch};
    }
    for (int i = 0; i < grams_of(form_); ++i) iterates.grams[static_cast<size_t>(i)] = take(layout.gram_bytes);
    auto* const sums = reinterpret_cast<double*>(take(layout.sums_bytes));
    auto* const norms = reinterpret_cast<FirstScalars*>(take(layout.norm_bytes));
    auto* const factors = reinterpret_cast<float*>(take(layout.factor_bytes));
    auto* const lines = reinterpret_cast<float*>(take(layout.line_bytes));
    auto* const squares = reinterpret_cast<float*>(take(layout.square_bytes));
    auto* const line_norms = reinterpret_cast<Norms*>(take(layout.line_norm_bytes));
    const Settings* const settings = queue_.upload(Settings{safety, options_.coefficients.steps.front()});
    iterates.norms = norms;
    iterates.safety = &settings->safety;
    iterates.lines = lines;
    const bool sums_rows =
        options_.normuon.has_value() && options_.normuon->axis == LineAxis::kRows && cublas == nullptr;
    if (sums_rows) iterates.row_squares = squares;

    matrices_ = queue_.upload(batch_);
    // The standard form begins with X where and as it is, if it can.
    const bool as_it_is = apart > 0 && form_ == Form::kStandard;
    find_norm(settings, sums, norms, factors, as_it_is);
    if (!as_it_is) load(iterates.x[0], factors);
    Orthogonalized orthogonalized;
    orthogonalized.count = batch_.size();
    orthogonalized.matrices = matrices_;
    orthogonalized.type = half_of(form_);
    orthogonalized.o = iterates.x[static_cast<size_t>(newton_schulz(options_.coefficients, iterates, queue_))];
    if (std::ranges::any_of(batch_, [](const UpdateMatrix& m) { return m.gram_error != nullptr; })) {
      measure_gram_error(iterates, orthogonalized.o, matrices_, queue_);
    }
    if (options_.normuon.has_value()) {
      const LineSums line_sums{options_.normuon->axis, shape_};
      if (!sums_rows) sum_lines(orthogonalized.type, orthogonalized.o, count, line_sums, squares, queue_);
      advance_variances(count, line_sums, {matrices_, queue_.upload(*options_.normuon), squares, lines, line_norms},
                        queue_);
      orthogonalized.axis = options_.normuon->axis;
      orthogonalized.factors = {lines, line_norms, static_cast<int>(line_sums.lines()),
                                static_cast<int>(norms_of(line_sums))};
    }
    return orthogonalized;
  }

  // All that run() goes by, for those who compare; whose products they are stays the same.
  void name_inputs(int64_t apart, const void* scratch, std::vector<int64_t>& inputs) const {
    const auto name = [&](auto... values) { (inputs.push_back(std::bit_cast<int64_t>(values)), ...); };
    const Coefficients& c = options_.coefficients;
    name(kind(), shape_.rows, shape_.columns, apart, scratch, c.safety, static_cast<int64_t>(c.rescale), c.steps.size(),
         static_cast<int64_t>(options_.normuon.has_value()));
    for (const Coefficients::Step& step : c.steps) name(step.a, step.b, step.c);
    if (const auto& lines = options_.normuon) name(static_cast<int64_t>(lines->axis), lines->beta2, lines->eps);
    for (const UpdateMatrix& m : batch_) name(m.matrix, m.variance, m.active, m.gram_error);
  }

  // Writes the wire.
  void finish(const Orthogonalized& orthogonalized) const {
    const Matrices& o = orthogonalized.o;
    const LineFactors& factors = orthogonalized.factors;
    const bool there = o.data == batch_[0].matrix && form_ == Form::kStandard;
    if (there && !options_.normuon.has_value()) return;
    const Factors kind_of_factors = !options_.normuon.has_value()               ? Factors::kNone
                                    : options_.normuon->axis == LineAxis::kRows ? Factors::kRows
                                                                                : Factors::kColumns;
    queue_.launch("wire",
                  {kind(), count(), shape_.rows, shape_.columns, address(orthogonalized.matrices), address(o.data),
                   o.stride, address(factors.inverses), address(factors.norms), static_cast<int64_t>(kind_of_factors)},
                  [&](cudaStream_t stream) {
                    switch (kind_of_factors) {
                      case Factors::kNone:
                        return write<Factors::kNone>(orthogonalized, stream);
                      case Factors::kRows:
                        return write<Factors::kRows>(orthogonalized, stream);
                      case Factors::kColumns:
                        return write<Factors::kColumns>(orthogonalized, stream);
                    }
                  });
  }

 private:
  dim3 octet_grid() const {
    return {static_cast<unsigned>(divide_up(octets_.count, kBlockOctets)), static_cast<unsigned>(batch_.size())};
  }
  // What distinguishes any launch of this batch.
  int64_t count() const { return static_cast<int64_t>(batch_.size()); }
  int64_t kind() const { return static_cast<int64_t>(form_) * 16 + static_cast<int64_t>(options_.wire); }

  void find_norm(const Settings* settings, double* sums, FirstScalars* norms, float* factors, bool as_it_is) const {
    const int64_t elements = shape_.rows * shape_.columns;
    const int64_t slabs = divide_up(elements, kSlab);
    queue_.launch("squares", {kind(), count(), elements, address(matrices_), address(sums)}, [&](cudaStream_t stream) {
      const dim3 grid(static_cast<unsigned>(slabs), static_cast<unsigned>(count()));
      if (options_.wire == Dtype::kF32) {
        sum_slabs<float><<<grid, kThreads, 0, stream>>>(matrices_, elements, sums);
      } else {
        sum_slabs<__nv_bfloat16><<<grid, kThreads, 0, stream>>>(matrices_, elements, sums);
      }
    });
    queue_.launch("norms",
                  {kind(), count(), slabs, address(sums), address(settings), address(factors), address(norms),
                   as_it_is ? octets_.count : 0},
                  [&](cudaStream_t stream) {
                    constexpr Form kForm = std::is_same_v<T, __half> ? Form::kGram : Form::kStandard;
                    find_norms<kForm><<<static_cast<unsigned>(count()), kThreads, 0, stream>>>(
                        sums, static_cast<int>(slabs), settings, factors, norms, as_it_is ? matrices_ : nullptr,
                        octets_);
                  });
  }

  void load(const Matrices& x, const float* factors) const {
    queue_.launch(
        "convert",
        {kind(), count(), shape_.rows, shape_.columns, address(matrices_), address(factors), address(x.data), x.stride},
        [&](cudaStream_t stream) {
          T* const to = static_cast<T*>(x.data);
          if (options_.wire == Dtype::kF32) {
            convert<float><<<octet_grid(), kThreads, 0, stream>>>(matrices_, octets_, factors, to, x.stride);
          } else {
            convert<__nv_bfloat16><<<octet_grid(), kThreads, 0, stream>>>(matrices_, octets_, factors, to, x.stride);
          }
        });
  }

  template <Factors kFactors>
  void write(const Orthogonalized& orthogonalized, cudaStream_t stream) const {
    const auto* const from = static_cast<const T*>(orthogonalized.o.data);
    const auto write_as = [&]<typename Out>(Out*) {
      write_wire<T, Out, kFactors><<<octet_grid(), kThreads, 0, stream>>>(
          from, orthogonalized.o.stride, octets_, orthogonalized.factors, orthogonalized.matrices);
    };
    options_.wire == Dtype::kF32 ? write_as(static_cast<float*>(nullptr))
                                 : write_as(static_cast<__nv_bfloat16*>(nullptr));
  }

  const OrthogonalizeOptions& options_;
  const Form form_;
  const MatrixShape shape_;
  const Octets octets_;
  const std::span<const UpdateMatrix> batch_;
  LaunchQueue& queue_;
  const UpdateMatrix* matrices_ = nullptr;  // on the device
};

}  // namespace

int64_t orthogonalize_batch(MatrixShape shape, int multiprocessors) {
  constexpr int64_t kSmall = 1024;
  constexpr int64_t kTile = 128;
  constexpr int64_t kMostBytes = int64_t{1} << 29;
  const int64_t n = std::min(shape.rows, shape.columns);
  if (n == 0) return 1;
  const int64_t down = divide_up(n, kTile);
  const int64_t tiles = down * (down + 1) / 2;
  const int64_t waves = n <= kSmall ? 4 : 16;
  const int64_t grams = long_enough_for_gram(shape) ? grams_of(Form::kGram) : grams_of(Form::kStandard);
  const int64_t bytes = 2 * (shape.rows * shape.columns + grams * n * n);
  return std::max<int64_t>(1, std::min(waves * multiprocessors / tiles, kMostBytes / bytes));
}

Orthogonalizer::Orthogonalizer(int device, Products products) {
  if (products == Products::kCublas || !products_available(device)) cublas_ = std::make_unique<Cublas>();
}

Orthogonalizer::~Orthogonalizer() = default;

const Orthogonalizer::Known& Orthogonalizer::known(const Coefficients& coefficients) const {
  for (const Known& known : known_) {
    const Coefficients& c = known.coefficients;
    if (c.safety == coefficients.safety && c.rescale == coefficients.rescale && c.steps == coefficients.steps) {
      return known;
    }
  }
  if (known_.size() >= kMostKnown) known_.clear();
  return known_.emplace_back(Known{coefficients, half_safety(coefficients), tolerates_gram(coefficients)});
}

int64_t Orthogonalizer::kind_of(const Coefficients& coefficients) const {
  const auto rescale = static_cast<int64_t>(coefficients.rescale);
  return std::ssize(coefficients.steps) << 3 | rescale << 1 | (known(coefficients).tolerates_gram ? 1 : 0);
}

int64_t Orthogonalizer::workspace(MatrixShape shape, int64_t batch, const OrthogonalizeOptions& options) const {
  if (batch == 0 || shape.rows == 0 || shape.columns == 0) return 0;
  const Form form = long_enough_for_gram(shape) ? Form::kGram : Form::kStandard;  // which has more
  return std::max(Layout(form, options, shape, 1, false).total,
                  Layout(form, options, shape, batch, may_be_x(options, shape)).total);
}

void Orthogonalizer::run(const OrthogonalizeOptions& options, MatrixShape shape, std::span<const UpdateMatrix> batch,
                         Workspace workspace_given, LaunchQueue& queue, const Use& use) {
  if (batch.empty() || shape.rows == 0 || shape.columns == 0) return;
  if (options.coefficients.steps.empty()) throw InvalidArgument("coefficients: no steps");
  constexpr int64_t kMostElements = int64_t{1} << 33;  // octets have 32-bit numbers
  if (shape.rows * pitch_of(shape.columns) > kMostElements) {
    throw InvalidArgument("orthogonalize: " + std::to_string(shape.rows) + "x" + std::to_string(shape.columns) +
                          " has too many elements");
  }
  const int64_t least = workspace(shape, 1, options);
  if (workspace_given.bytes < least) {
    throw InvalidArgument("orthogonalize: workspace of " + std::to_string(workspace_given.bytes) + " bytes, expected " +
                          std::to_string(least));
  }
  const Known& known = this->known(options.coefficients);
  const Form form = long_enough_for_gram(shape) && known.tolerates_gram ? Form::kGram : Form::kStandard;
  const int64_t apart = may_be_x(options, shape) ? spacing(batch, shape) : 0;
  const auto bytes = [&](int64_t count) { return Layout(form, options, shape, count, apart > 0).total; };
  constexpr size_t kMostTogether = 1 << 15;  // a grid has no more than twice that
  auto room = static_cast<int64_t>(std::min(batch.size(), kMostTogether));
  if (bytes(room) > workspace_given.bytes) room = std::max<int64_t>(1, workspace_given.bytes / bytes(1));
  const auto orthogonalize = [&](auto batch_of_type, size_t first) {
    inputs_.clear();
    batch_of_type.name_inputs(apart, workspace_given.data, inputs_);
    Orthogonalized orthogonalized = queue.memoize<Orthogonalized>(inputs_, [&] {
      return batch_of_type.run(cublas_.get(), known.safety, apart, static_cast<char*>(workspace_given.data));
    });
    orthogonalized.first = first;
    use ? use(orthogonalized) : batch_of_type.finish(orthogonalized);
  };
  for (size_t begin = 0; begin < batch.size(); begin += static_cast<size_t>(room)) {
    const auto part = batch.subspan(begin, std::min(static_cast<size_t>(room), batch.size() - begin));
    if (form == Form::kGram) {
      orthogonalize(Batch<__half>(options, form, shape, part, queue), begin);
    } else {
      orthogonalize(Batch<__nv_bfloat16>(options, form, shape, part, queue), begin);
    }
  }
}

}  // namespace muster::kernels::cuda
