// A NorMuon step written the usual way, to compare with: standard form, gemm only, one matrix at a time, one pass over
// the elements for each operation. It has the same BLAS at its full rate, and every product and pass uses all threads.
#pragma once

#include <algorithm>
#include <blis.h>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <ctime>
#include <random>
#include <vector>

#include "kernels/cpu/thread_pool.h"
#include "kernels/kernels.h"

namespace muster::bench {

using kernels::MatrixShape;
using kernels::cpu::ThreadPool;

struct Batch {
  MatrixShape shape;
  int64_t count;
};

// A quarter of the depth of GPT-2, which is 768 wide.
inline constexpr int64_t kWidth = 768;
inline std::vector<Batch> workload(int64_t width) {
  return {{{width, width}, 12}, {{4 * width, width}, 3}, {{width, 4 * width}, 3}};
}
inline const std::vector<Batch> kWorkload = workload(kWidth);

inline std::vector<float> random_values(int64_t count, uint32_t seed = 7) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(count));
  for (float& x : values) x = normal(random);
  return values;
}

struct Operand {
  const float* data;
  int64_t stride;
  trans_t transpose = BLIS_NO_TRANSPOSE;
};

// C = A B, row-major, on this thread, at the best rate BLIS has for these sizes.
inline void sgemm(MatrixShape c_shape, int64_t inner, Operand a, Operand b, float* c) {
  rntm_t runtime;
  bli_rntm_init(&runtime);
  bli_rntm_set_num_threads(1, &runtime);
  bli_rntm_disable_l3_sup(&runtime);
  float one = 1;
  float zero = 0;
  bli_sgemm_ex(a.transpose, b.transpose, c_shape.rows, c_shape.columns, inner, &one, const_cast<float*>(a.data),
               a.stride, 1, const_cast<float*>(b.data), b.stride, 1, &zero, c, c_shape.columns, 1, nullptr, &runtime);
}

// CPU seconds of the process, over all threads.
inline double cpu_now() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// FLOP/s, by the wall clock and by CPU time as if every thread had a core to itself.
struct Rate {
  double wall = 0;
  double cpu = 0;

  void raise_to(Rate other) {
    wall = std::max(wall, other.wall);
    cpu = std::max(cpu, other.cpu);
  }
};

// The rate of square products, one on each thread.
class SgemmPeak {
 public:
  SgemmPeak(int threads, int64_t n)
      : n_(n), pool_(threads), a_(random_values(n * n)), c_(static_cast<size_t>(threads), std::vector<float>(a_)) {}

  Rate measure() {
    const double cpu = cpu_now();
    const auto start = std::chrono::steady_clock::now();
    pool_.run(pool_.threads(), [&](int64_t i, int) {
      sgemm({n_, n_}, n_, {a_.data(), n_}, {a_.data(), n_}, c_[static_cast<size_t>(i)].data());
    });
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    const double n = static_cast<double>(n_);
    const double threads = pool_.threads();
    const double flops = 2 * n * n * n * threads;
    return {flops / seconds.count(), flops * threads / (cpu_now() - cpu)};
  }

 private:
  int64_t n_;
  ThreadPool pool_;
  std::vector<float> a_;
  std::vector<std::vector<float>> c_;
};

class UsualWay {
 public:
  struct Options {
    Coefficients coefficients;
    double lr = 0;
    double weight_decay = 0;  // cautious
    double mu = 0.95;
    double beta2 = 0.95;
    double eps = 1e-8;
    bool fused = false;  // momentum in one pass; NorMuon's scale, decay and apply in another: no other change
  };

  UsualWay(int threads, Options options) : pool_(threads), options_(std::move(options)) {}

  // The FLOPs of its products.
  static double flops(MatrixShape shape, size_t steps) {
    const double n = static_cast<double>(std::min(shape.rows, shape.columns));
    const double longer = static_cast<double>(std::max(shape.rows, shape.columns));
    return static_cast<double>(steps) * (4 * n * n * longer + 2 * n * n * n);
  }

  // One matrix; momentum and variance are f32 and start at 0. The variance is one a line along the longer side.
  void step(MatrixShape shape, const float* grad, float* momentum, float* variance, float* weight) {
    const int64_t count = shape.rows * shape.columns;
    const float mu = static_cast<float>(options_.mu);
    const float rest = static_cast<float>(1 - options_.mu);
    x_.resize(static_cast<size_t>(count));
    if (options_.fused) {
      each(count, [&](int64_t i) {
        momentum[i] += rest * (grad[i] - momentum[i]);
        x_[i] = grad[i] + mu * (momentum[i] - grad[i]);
      });
    } else {
      each(count, [&](int64_t i) { momentum[i] += rest * (grad[i] - momentum[i]); });
      each(count, [&](int64_t i) { x_[i] = grad[i] + mu * (momentum[i] - grad[i]); });
    }
    orthogonalize(shape, x_);
    const double scale = std::sqrt(std::max(1.0, static_cast<double>(shape.rows) / static_cast<double>(shape.columns)));
    const float step = static_cast<float>(options_.lr * scale);
    const float keep = static_cast<float>(1 - options_.lr * options_.weight_decay);
    if (options_.fused) return normalize_and_apply(shape, variance, step, keep, weight);
    normalize(shape, variance);
    each(count, [&](int64_t i) { weight[i] *= x_[i] * weight[i] >= 0 ? keep : 1.0f; });
    each(count, [&](int64_t i) { weight[i] -= step * x_[i]; });
  }

  void orthogonalize(MatrixShape shape, std::vector<float>& x) {
    const bool wide = shape.rows <= shape.columns;
    const int64_t n = std::min(shape.rows, shape.columns);
    const int64_t longer = std::max(shape.rows, shape.columns);
    const int64_t count = shape.rows * shape.columns;
    gram_.resize(static_cast<size_t>(n * n));
    square_.resize(gram_.size());
    product_.resize(x.size());
    const float factor = static_cast<float>(1 / (options_.coefficients.safety * std::sqrt(sum_of_squares(x))));
    each(count, [&](int64_t i) { x[i] *= factor; });
    for (const Coefficients::Step& step : options_.coefficients.steps) {
      const Operand plain{x.data(), shape.columns};
      const Operand transposed{x.data(), shape.columns, BLIS_TRANSPOSE};
      multiply({n, n}, longer, wide ? plain : transposed, wide ? transposed : plain, gram_.data());
      multiply({n, n}, n, {gram_.data(), n}, {gram_.data(), n}, square_.data());
      const float a = static_cast<float>(step.a);
      const float b = static_cast<float>(step.b);
      const float c = static_cast<float>(step.c);
      each(n * n, [&](int64_t i) { square_[i] = b * gram_[i] + c * square_[i]; });
      const Operand polynomial{square_.data(), n};
      multiply(shape, n, wide ? polynomial : plain, wide ? plain : polynomial, product_.data());
      each(count, [&](int64_t i) { x[i] = a * x[i] + product_[i]; });
    }
  }

 private:
  // f(i) for every element, the threads sharing them out.
  template <typename F>
  void each(int64_t count, const F& f) {
    const int64_t part = (count + pool_.threads() - 1) / pool_.threads();
    pool_.run(pool_.threads(), [&](int64_t t, int) {
      for (int64_t i = t * part; i < std::min(count, (t + 1) * part); ++i) f(i);
    });
  }

  double sum_of_squares(const std::vector<float>& x) {
    const int64_t count = static_cast<int64_t>(x.size());
    constexpr int64_t kPart = 1 << 16;
    std::vector<double> sums(static_cast<size_t>((count + kPart - 1) / kPart));
    pool_.run(static_cast<int64_t>(sums.size()), [&](int64_t p, int) {
      float lanes[16] = {};
      for (int64_t i = p * kPart; i + 16 <= std::min(count, (p + 1) * kPart); i += 16) {
        for (int64_t l = 0; l < 16; ++l) lanes[l] += x[i + l] * x[i + l];
      }
      for (const float lane : lanes) sums[static_cast<size_t>(p)] += static_cast<double>(lane);
    });
    double sum = 0;
    for (const double s : sums) sum += s;
    return sum;
  }

  // C = A B, the rows split over the threads.
  void multiply(MatrixShape shape, int64_t inner, Operand a, Operand b, float* c) {
    const int64_t each = (shape.rows + pool_.threads() - 1) / pool_.threads();
    pool_.run(pool_.threads(), [&](int64_t t, int) {
      const int64_t begin = std::min(shape.rows, t * each);
      Operand mine = a;
      mine.data += a.transpose == BLIS_TRANSPOSE ? begin : begin * a.stride;
      const int64_t rows = std::min(each, shape.rows - begin);
      if (rows > 0) sgemm({rows, shape.columns}, inner, mine, b, c + begin * shape.columns);
    });
  }

  // The squares of x by line, in squares_.
  void sum_lines(MatrixShape shape) {
    const bool columns = shape.columns > shape.rows;
    const int64_t lines = std::max(shape.rows, shape.columns);
    squares_.assign(static_cast<size_t>(lines), 0);
    const int64_t part = (lines + pool_.threads() - 1) / pool_.threads();
    pool_.run(pool_.threads(), [&](int64_t t, int) {
      const int64_t begin = std::min(lines, t * part);
      const int64_t end = std::min(lines, begin + part);
      if (columns) {
        for (int64_t i = 0; i < shape.rows; ++i) {
          const float* row = x_.data() + i * shape.columns;
          for (int64_t j = begin; j < end; ++j) squares_[j] += row[j] * row[j];
        }
      } else {
        for (int64_t i = begin; i < end; ++i) {
          float lanes[16] = {};
          const float* row = x_.data() + i * shape.columns;
          for (int64_t j = 0; j + 16 <= shape.columns; j += 16) {
            for (int64_t l = 0; l < 16; ++l) lanes[l] += row[j + l] * row[j + l];
          }
          for (const float lane : lanes) squares_[i] += lane;
        }
      }
    });
  }

  // What NorMuon multiplies the lines by, but for the norm, in squares_.
  void update_variance(MatrixShape shape, float* variance) {
    const auto length = static_cast<float>(std::min(shape.rows, shape.columns));
    const float rest = static_cast<float>(1 - options_.beta2);
    for (size_t i = 0; i < squares_.size(); ++i) {
      variance[i] += rest * (squares_[i] / length - variance[i]);
      squares_[i] = 1 / (std::sqrt(variance[i]) + static_cast<float>(options_.eps));
    }
  }

  // NorMuon: mean squares of the lines, division by their roots, and the norm as it was.
  void normalize(MatrixShape shape, float* variance) {
    const bool columns = shape.columns > shape.rows;
    const double before = sum_of_squares(x_);
    sum_lines(shape);
    update_variance(shape, variance);
    each(shape.rows, [&](int64_t i) {
      float* row = x_.data() + i * shape.columns;
      if (columns) {
        for (int64_t j = 0; j < shape.columns; ++j) row[j] *= squares_[j];
      } else {
        for (int64_t j = 0; j < shape.columns; ++j) row[j] *= squares_[i];
      }
    });
    const float keep = static_cast<float>(std::sqrt(before / sum_of_squares(x_)));
    each(shape.rows * shape.columns, [&](int64_t i) { x_[i] *= keep; });
  }

  // The same, and the step: both norms follow from the lines', and one pass does the rest.
  void normalize_and_apply(MatrixShape shape, float* variance, float step, float keep, float* weight) {
    const bool columns = shape.columns > shape.rows;
    sum_lines(shape);
    const std::vector<float> squares = squares_;
    update_variance(shape, variance);
    double before = 0;
    double after = 0;
    for (size_t i = 0; i < squares.size(); ++i) {
      const auto square = static_cast<double>(squares[i]);
      before += square;
      after += square * static_cast<double>(squares_[i]) * static_cast<double>(squares_[i]);
    }
    const float norm = static_cast<float>(std::sqrt(before / after));
    each(shape.rows, [&](int64_t i) {
      const float* row = x_.data() + i * shape.columns;
      float* w = weight + i * shape.columns;
      const float* factors = columns ? squares_.data() : squares_.data() + i;
      for (int64_t j = 0; j < shape.columns; ++j) {
        const float update = row[j] * factors[columns ? j : 0] * norm;
        w[j] = w[j] * (update * w[j] >= 0 ? keep : 1.0f) - step * update;
      }
    });
  }

  ThreadPool pool_;
  Options options_;
  std::vector<float> x_;
  std::vector<float> gram_;
  std::vector<float> square_;
  std::vector<float> product_;
  std::vector<float> squares_;
};

}  // namespace muster::bench
