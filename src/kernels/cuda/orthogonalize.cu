#include <algorithm>
#include <cmath>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <string>
#include <vector>

#include "kernels/cuda/check.h"
#include "kernels/cuda/orthogonalize.h"
#include "kernels/cuda/product.h"
#include "muster/error.h"

namespace muster::kernels::cuda {

namespace {

constexpr int64_t kAlign = 256;
constexpr int kThreads = 256;
constexpr int64_t kSlab = 1 << 15;  // elements of one partial sum
constexpr int kMostPairs = 128;     // matrices a launch can name
constexpr int kMostSteps = 64;
constexpr size_t kRestart = 2;

int64_t align(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }
int64_t pitch_of(int64_t columns) { return (columns + 7) / 8 * 8; }
int64_t slabs(int64_t elements) { return (elements + kSlab - 1) / kSlab; }

// The scratch of a batch.
struct Layout {
  Layout(MatrixShape shape, int64_t batch) : shape_(shape), n(std::min(shape.rows, shape.columns)) {
    x_stride = shape.rows * pitch_of(shape.columns);
    gram_stride = n * pitch_of(n);
    x_bytes = align(batch * x_stride * 2);
    gram_bytes = align(batch * gram_stride * 2);
    sums_bytes = align(batch * slabs(shape.rows * shape.columns) * 8);
    factor_bytes = align(batch * n * 4);
    scalar_bytes = align(kMostSteps * 3 * static_cast<int64_t>(sizeof(Scalars)));
  }
  int64_t total() const { return 2 * x_bytes + 4 * gram_bytes + sums_bytes + factor_bytes + scalar_bytes; }

  MatrixShape shape_;
  int64_t n;
  int64_t x_stride;
  int64_t gram_stride;
  int64_t x_bytes;
  int64_t gram_bytes;
  int64_t sums_bytes;
  int64_t factor_bytes;
  int64_t scalar_bytes;
};

struct Pairs {
  const void* input[kMostPairs];
  void* output[kMostPairs];
};

struct ScalarList {
  Scalars polynomial[kMostSteps];  // c A^2 + b A
  Scalars product[kMostSteps];     // B X + a X
};

__global__ void write_scalars(const __grid_constant__ ScalarList list, Scalars* to, int steps) {
  const int i = static_cast<int>(threadIdx.x);
  if (i >= steps) return;
  to[i] = list.polynomial[i];
  to[kMostSteps + i] = list.product[i];
  if (i == 0) to[2 * kMostSteps] = {1, 0};
}

__device__ float load(const float* from, int64_t i) { return from[i]; }
__device__ float load(const __nv_bfloat16* from, int64_t i) { return __bfloat162float(from[i]); }
__device__ void store(float* to, int64_t i, float v) { to[i] = v; }
__device__ void store(__nv_bfloat16* to, int64_t i, float v) { to[i] = __float2bfloat16(v); }
__device__ void store(__half* to, int64_t i, float v) { to[i] = __float2half(v); }
__device__ float load(const __half* from, int64_t i) { return __half2float(from[i]); }

// The sum over the block's threads, in a fixed order, for thread 0.
template <typename V>
__device__ V block_sum(V v) {
  __shared__ V partial[kThreads / 32];
  for (int offset = 16; offset > 0; offset /= 2) v += __shfl_down_sync(0xffffffff, v, offset);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = v;
  __syncthreads();
  V sum = 0;
  for (int w = 0; w < kThreads / 32; ++w) sum += partial[w];
  return sum;
}

// Squares of one slab of one matrix.
template <typename In>
__global__ void sum_slabs(const __grid_constant__ Pairs pairs, int64_t elements, double* sums) {
  const auto* const x = static_cast<const In*>(pairs.input[blockIdx.y]);
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kSlab;
  const int64_t end = min(elements, begin + kSlab);
  double sum = 0;
  for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
    const auto v = static_cast<double>(load(x, i));
    sum += v * v;
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) sums[static_cast<int64_t>(blockIdx.y) * gridDim.x + blockIdx.x] = sum;
}

// X / (safety ||X|| + eps), rows a pitch apart.
template <typename In, typename T>
__global__ void normalize(const __grid_constant__ Pairs pairs, int64_t rows, int64_t columns, int64_t pitch,
                          const double* sums, int slab_count, double safety, double eps, T* to) {
  __shared__ float factor;
  const int64_t matrix = blockIdx.y;
  if (threadIdx.x == 0) {
    double sum = 0;
    for (int s = 0; s < slab_count; ++s) sum += sums[matrix * slab_count + s];
    factor = sum == 0 ? 0.0F : static_cast<float>(1 / (safety * sqrt(sum) + eps));
  }
  __syncthreads();
  const auto* const x = static_cast<const In*>(pairs.input[matrix]);
  T* const out = to + matrix * rows * pitch;
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    for (int64_t j = threadIdx.x; j < pitch; j += kThreads) {
      store(out, row * pitch + j, j < columns ? load(x, row * columns + j) * factor : 0.0F);
    }
  }
}

template <typename T, typename Out>
__global__ void unload(const __grid_constant__ Pairs pairs, int64_t rows, int64_t columns, int64_t pitch,
                       const T* from) {
  auto* const out = static_cast<Out*>(pairs.output[blockIdx.y]);
  const T* const x = from + static_cast<int64_t>(blockIdx.y) * rows * pitch;
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    for (int64_t j = threadIdx.x; j < columns; j += kThreads) store(out, row * columns + j, load(x, row * pitch + j));
  }
}

// Q = Z + a I.
template <typename T>
__global__ void add_identity(const T* z, T* q, int64_t n, int64_t pitch, const Scalars* scalars) {
  const int64_t base = static_cast<int64_t>(blockIdx.y) * n * pitch;
  const float a = scalars->beta;
  for (int64_t row = blockIdx.x; row < n; row += gridDim.x) {
    for (int64_t j = threadIdx.x; j < n; j += kThreads) {
      const int64_t at = base + row * pitch + j;
      store(q, at, load(z, at) + (row == j ? a : 0.0F));
    }
  }
}

// rsqrt(sum_j |A_ij|).
template <typename T>
__global__ void line_factors(const T* a, int64_t n, int64_t pitch, float* factors) {
  const int64_t row = blockIdx.x;
  const int64_t matrix = blockIdx.y;
  float sum = 0;
  for (int64_t j = threadIdx.x; j < n; j += kThreads) sum += fabsf(load(a, (matrix * n + row) * pitch + j));
  sum = block_sum(sum);
  if (threadIdx.x == 0) factors[matrix * n + row] = sum > 0 ? rsqrtf(sum) : 0.0F;
}

// Element (i, j) times the factors of its row and of its column, where there are any.
template <typename T>
__global__ void scale_lines(T* x, int64_t rows, int64_t columns, int64_t pitch, const float* row_factors,
                            const float* column_factors) {
  const int64_t matrix = blockIdx.y;
  for (int64_t i = blockIdx.x; i < rows; i += gridDim.x) {
    const float own = row_factors != nullptr ? row_factors[matrix * rows + i] : 1.0F;
    for (int64_t j = threadIdx.x; j < columns; j += kThreads) {
      const int64_t at = (matrix * rows + i) * pitch + j;
      const float other = column_factors != nullptr ? column_factors[matrix * columns + j] : 1.0F;
      store(x, at, load(x, at) * own * other);
    }
  }
}

// Some matrices of one shape, on one stream.
template <typename T>
class Batch {
 public:
  Batch(const OrthogonalizeOptions& options, MatrixShape shape, std::span<const MatrixPair> pairs, char* scratch,
        cudaStream_t stream)
      : options_(options),
        shape_(shape),
        layout_(shape, static_cast<int64_t>(pairs.size())),
        count_(static_cast<int64_t>(pairs.size())),
        wide_(shape.rows <= shape.columns),
        stream_(stream) {
    for (int i = 0; i < 2; ++i, scratch += layout_.x_bytes) x_[i] = reinterpret_cast<T*>(scratch);
    for (int i = 0; i < 4; ++i, scratch += layout_.gram_bytes) gram_[i] = reinterpret_cast<T*>(scratch);
    sums_ = reinterpret_cast<double*>(scratch);
    factors_ = reinterpret_cast<float*>(scratch + layout_.sums_bytes);
    scalars_ = reinterpret_cast<Scalars*>(scratch + layout_.sums_bytes + layout_.factor_bytes);
    for (size_t i = 0; i < pairs.size(); ++i) {
      pairs_.input[i] = pairs[i].input;
      pairs_.output[i] = pairs[i].output;
    }
  }

  void run(Form form) {
    const auto& steps = options_.coefficients.steps;
    ScalarList list{};
    for (size_t s = 0; s < steps.size(); ++s) {
      list.polynomial[s] = {static_cast<float>(steps[s].c), static_cast<float>(steps[s].b)};
      list.product[s] = {1, static_cast<float>(steps[s].a)};
    }
    write_scalars<<<1, kMostSteps, 0, stream_>>>(list, scalars_, static_cast<int>(steps.size()));
    if (options_.input == Dtype::kF32) {
      load_from<float>();
    } else {
      load_from<__nv_bfloat16>();
    }
    const int last = form == Form::kGram ? gram_form() : standard_form();
    if (options_.output == Dtype::kF32) {
      unload<T, float><<<rows_grid(shape_.rows), kThreads, 0, stream_>>>(pairs_, shape_.rows, shape_.columns,
                                                                         pitch_of(shape_.columns), x_[last]);
    } else {
      unload<T, __nv_bfloat16><<<rows_grid(shape_.rows), kThreads, 0, stream_>>>(pairs_, shape_.rows, shape_.columns,
                                                                                 pitch_of(shape_.columns), x_[last]);
    }
    check(cudaGetLastError(), "orthogonalize");
  }

 private:
  dim3 rows_grid(int64_t rows) const {
    return {static_cast<unsigned>(std::min<int64_t>(rows, 4096)), static_cast<unsigned>(count_)};
  }

  template <typename In>
  void load_from() {
    const int64_t elements = shape_.rows * shape_.columns;
    const auto count = static_cast<unsigned>(slabs(elements));
    sum_slabs<In><<<dim3(count, static_cast<unsigned>(count_)), kThreads, 0, stream_>>>(pairs_, elements, sums_);
    normalize<In, T><<<rows_grid(shape_.rows), kThreads, 0, stream_>>>(
        pairs_, shape_.rows, shape_.columns, pitch_of(shape_.columns), sums_, static_cast<int>(count),
        half_safety(options_.coefficients), options_.eps, x_[0]);
  }

  Matrices x(int i) const { return {x_[i], shape_.rows, shape_.columns, pitch_of(shape_.columns), layout_.x_stride}; }
  Matrices gram(int i) const { return {gram_[i], layout_.n, layout_.n, pitch_of(layout_.n), layout_.gram_stride}; }
  const Scalars* polynomial(size_t s) const { return scalars_ + s; }
  const Scalars* product(size_t s) const { return scalars_ + kMostSteps + s; }
  const Scalars* one() const { return scalars_ + 2 * kMostSteps; }

  Product product_of(const Matrices& a, const Matrices& b, const Matrices& c, const Matrices& d,
                     const Scalars* scalars) const {
    Product p;
    p.type = std::is_same_v<T, __half> ? Half::kF16 : Half::kBf16;
    p.a = a;
    p.b = b;
    p.c = c;
    p.d = d;
    p.batch = count_;
    p.scalars = scalars;
    return p;
  }

  void form_gram(int from, int to) const {
    Product p = product_of(x(from), x(from), {}, gram(to), one());
    p.symmetric = true;
    p.a_transposed = !wide_;
    p.b_transposed = wide_;
    multiply(p, stream_);
  }
  // gram(to) = alpha gram(a) gram(b) + beta gram(c), all of which commute.
  void multiply_grams(int a, int b, int c, int to, const Scalars* scalars) const {
    Product p = product_of(gram(a), gram(b), gram(c), gram(to), scalars);
    p.symmetric = true;
    p.b_transposed = true;
    multiply(p, stream_);
  }
  // gram(q) X, or X gram(q) for tall matrices, and beta X.
  void multiply_x(int q, int from, bool add, const Scalars* scalars) const {
    Product p = product_of(wide_ ? gram(q) : x(from), wide_ ? x(from) : gram(q), add ? x(from) : Matrices{},
                           x(1 - from), scalars);
    p.b_transposed = !wide_;
    multiply(p, stream_);
  }

  void rescale(int from, int a) const {
    if (options_.coefficients.rescale != Coefficients::Rescale::kAol) return;
    const int64_t n = layout_.n;
    const int64_t pitch = pitch_of(n);
    line_factors<<<dim3(static_cast<unsigned>(n), static_cast<unsigned>(count_)), kThreads, 0, stream_>>>(
        gram_[a], n, pitch, factors_);
    scale_lines<<<rows_grid(n), kThreads, 0, stream_>>>(gram_[a], n, n, pitch, factors_, factors_);
    scale_lines<<<rows_grid(shape_.rows), kThreads, 0, stream_>>>(x_[from], shape_.rows, shape_.columns,
                                                                  pitch_of(shape_.columns), wide_ ? factors_ : nullptr,
                                                                  wide_ ? nullptr : factors_);
  }

  int standard_form() const {
    int now = 0;
    for (size_t s = 0; s < options_.coefficients.steps.size(); ++s) {
      form_gram(now, 0);
      if (s == 0) rescale(now, 0);
      multiply_grams(0, 0, 0, 1, polynomial(s));
      multiply_x(1, now, true, product(s));
      now = 1 - now;
    }
    return now;
  }

  // R is the Gram matrix of what X would be by now, Q what X is to be multiplied with. `a` stays out of Z, whose
  // rounding would lose it. Half precision makes R's small eigenvalues negative and every step doubles that and more,
  // so after two steps both start anew from X.
  int gram_form() const {
    const size_t steps = options_.coefficients.steps.size();
    int now = 0;
    constexpr int r = 0;
    int q = 1;
    constexpr int z = 2;
    int free = 3;
    form_gram(now, r);
    rescale(now, r);
    for (size_t s = 0; s < steps; ++s) {
      const bool fresh = s == 0 || s == kRestart;
      if (s == kRestart) {
        multiply_x(q, now, false, one());
        now = 1 - now;
        form_gram(now, r);
      }
      multiply_grams(r, r, r, z, polynomial(s));
      if (fresh) {
        add_identity<<<rows_grid(layout_.n), kThreads, 0, stream_>>>(gram_[z], gram_[q], layout_.n, pitch_of(layout_.n),
                                                                     product(s));
      } else {
        multiply_grams(q, z, q, free, product(s));
        std::swap(q, free);
      }
      if (s + 1 == steps || s + 1 == kRestart) continue;
      multiply_grams(r, z, r, free, product(s));
      multiply_grams(z, free, free, r, product(s));
    }
    multiply_x(q, now, false, one());
    return 1 - now;
  }

  const OrthogonalizeOptions& options_;
  const MatrixShape shape_;
  const Layout layout_;
  const int64_t count_;
  const bool wide_;
  const cudaStream_t stream_;
  T* x_[2];
  T* gram_[4];
  double* sums_;
  float* factors_;
  Scalars* scalars_;
  Pairs pairs_{};
};

// How many matrices go through the steps together. Small ones: so many that a symmetric product fills the device twice,
// and that what they read and write stays in its cache from one product to the next.
int64_t sub_batch(MatrixShape shape, int multiprocessors) {
  constexpr int64_t kSmall = 1024;
  constexpr int64_t kTile = 128;
  const int64_t n = std::min(shape.rows, shape.columns);
  if (n > kSmall || std::max(shape.rows, shape.columns) > 2 * kSmall) return kMostPairs;
  const int64_t down = (n + kTile - 1) / kTile;
  return std::clamp<int64_t>(2 * multiprocessors / (down * (down + 1) / 2), 1, kMostPairs);
}

// The largest singular value of the result stays bounded if each step sees its input off by this much either way.
bool tolerates(const Coefficients& coefficients, double off) {
  constexpr int kPoints = 1000;
  constexpr double kMost = 1.5;
  for (int i = 1; i <= kPoints; ++i) {
    double low = i / (kPoints * coefficients.safety);
    double high = low;
    for (const Coefficients::Step& step : coefficients.steps) {
      const auto value = [&](double x) { return x * (step.a + x * x * (step.b + x * x * step.c)); };
      const double images[] = {value(low * (1 - off)), value(low * (1 + off)), value(high * (1 - off)),
                               value(high * (1 + off))};
      low = *std::min_element(images, images + 4);
      high = *std::max_element(images, images + 4);
    }
    if (!(std::max(std::abs(low), std::abs(high)) <= kMost)) return false;
  }
  return true;
}

}  // namespace

Form form_of(MatrixShape shape, const Coefficients& coefficients) {
  const int64_t longer = std::max(shape.rows, shape.columns);
  const int64_t shorter = std::min(shape.rows, shape.columns);
  return longer >= 2 * shorter && tolerates(coefficients, 0.03) ? Form::kGram : Form::kStandard;
}

// Sub-batches go to two streams in turn: where one product leaves multiprocessors idle, another starts.
struct Orthogonalizer::Lanes {
  static constexpr int kCount = 2;
  int multiprocessors = 0;
  cudaStream_t streams[kCount]{};
  cudaEvent_t begin = nullptr;
  cudaEvent_t end[kCount]{};
};

Orthogonalizer::Orthogonalizer(int device) : lanes_(std::make_unique<Lanes>()) {
  if (!products_available(device))
    throw DeviceError("orthogonalize: device " + std::to_string(device) + " is not sm_90");
  check(cudaDeviceGetAttribute(&lanes_->multiprocessors, cudaDevAttrMultiProcessorCount, device), "orthogonalize");
  for (int i = 0; i < Lanes::kCount; ++i) {
    check(cudaStreamCreateWithFlags(&lanes_->streams[i], cudaStreamNonBlocking), "orthogonalize");
    check(cudaEventCreateWithFlags(&lanes_->end[i], cudaEventDisableTiming), "orthogonalize");
  }
  check(cudaEventCreateWithFlags(&lanes_->begin, cudaEventDisableTiming), "orthogonalize");
}

Orthogonalizer::~Orthogonalizer() {
  for (int i = 0; i < Lanes::kCount; ++i) {
    cudaStreamDestroy(lanes_->streams[i]);
    cudaEventDestroy(lanes_->end[i]);
  }
  cudaEventDestroy(lanes_->begin);
}

int64_t Orthogonalizer::workspace(MatrixShape shape, int64_t batch) const {
  const int64_t each = sub_batch(shape, lanes_->multiprocessors);
  int64_t bytes = 0;
  for (int64_t begin = 0; begin < batch; begin += each) bytes += Layout(shape, std::min(each, batch - begin)).total();
  return bytes;
}

void Orthogonalizer::run(const OrthogonalizeOptions& options, MatrixShape shape, std::span<const MatrixPair> batch,
                         Workspace workspace_given, cudaStream_t stream) {
  if (batch.empty() || shape.rows == 0 || shape.columns == 0) return;
  const size_t steps = options.coefficients.steps.size();
  if (steps == 0 || steps > kMostSteps) throw InvalidArgument("coefficients: " + std::to_string(steps) + " steps");
  const int64_t needed = workspace(shape, static_cast<int64_t>(batch.size()));
  if (workspace_given.bytes < needed) {
    throw InvalidArgument("orthogonalize: workspace of " + std::to_string(workspace_given.bytes) + " bytes, expected " +
                          std::to_string(needed));
  }
  const auto each = static_cast<size_t>(sub_batch(shape, lanes_->multiprocessors));
  const bool forks = batch.size() > each;
  if (forks) check(cudaEventRecord(lanes_->begin, stream), "orthogonalize");
  char* scratch = static_cast<char*>(workspace_given.data);
  size_t number = 0;
  for (size_t begin = 0; begin < batch.size(); begin += each, ++number) {
    const auto part = batch.subspan(begin, std::min(each, batch.size() - begin));
    const cudaStream_t lane = forks ? lanes_->streams[number % Lanes::kCount] : stream;
    if (forks && number < Lanes::kCount) check(cudaStreamWaitEvent(lane, lanes_->begin, 0), "orthogonalize");
    const Form form = form_of(shape, options.coefficients);
    if (form == Form::kGram) {
      Batch<__half>(options, shape, part, scratch, lane).run(form);
    } else {
      Batch<__nv_bfloat16>(options, shape, part, scratch, lane).run(form);
    }
    scratch += Layout(shape, static_cast<int64_t>(part.size())).total();
  }
  for (int i = 0; forks && i < Lanes::kCount; ++i) {
    check(cudaEventRecord(lanes_->end[i], lanes_->streams[i]), "orthogonalize");
    check(cudaStreamWaitEvent(stream, lanes_->end[i], 0), "orthogonalize");
  }
}

double half_safety(const Coefficients& coefficients) {
  constexpr double kMargin = 1.02;
  return coefficients.safety * (tolerates(coefficients, 0.01) ? 1 : kMargin);
}

double orthogonalize_flops(Form form, MatrixShape shape, int64_t steps) {
  const int64_t n = std::min(shape.rows, shape.columns);
  Product square;
  square.a = {nullptr, n, n, n, 0};
  square.d = square.a;
  square.symmetric = true;
  square.batch = 1;
  Product gram = square;
  gram.a.columns = std::max(shape.rows, shape.columns);
  Product x;
  x.a = square.a;
  x.d = {nullptr, shape.rows, shape.columns, 0, 0};
  x.batch = 1;
  const auto count = static_cast<double>(steps);
  if (form == Form::kStandard) return count * (flops(gram) + flops(square) + flops(x));
  if (steps <= 2) return flops(gram) + (steps == 2 ? 5 : 1) * flops(square) + flops(x);
  return 2 * (flops(gram) + flops(x)) + (4 * count - 6) * flops(square);
}

}  // namespace muster::kernels::cuda
