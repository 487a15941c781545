#include "kernels/cuda/newton_schulz/newton_schulz.h"

#include <span>
#include <utility>
#include <vector>

#include "kernels/cuda/newton_schulz/gram_kernels.h"

namespace muster::kernels::cuda {

namespace {

class Steps {
 public:
  Steps(const Coefficients& coefficients, const Iterates& iterates, LaunchQueue& queue)
      : coefficients_(coefficients),
        iterates_(iterates),
        wide_(iterates.shape.rows <= iterates.shape.columns),
        queue_(queue) {
    std::vector<Scalars> scalars{{1, 0}};
    for (const Coefficients::Step& step : coefficients.steps) {
      scalars.push_back({static_cast<float>(step.c), static_cast<float>(step.b)});
      scalars.push_back({1, static_cast<float>(step.a)});
    }
    scalars_ = queue.upload(std::span<const Scalars>(scalars));
  }

  int standard_form() const {
    int now = 0;
    for (size_t s = 0; s < coefficients_.steps.size(); ++s) {
      const bool first = s == 0;
      form_gram(x(now), 0, first ? of_each(&FirstScalars::gram) : of_all(one()));
      if (first) rescale();
      multiply_grams({.a = 0, .b = 0, .c = 0, .d = 1}, polynomial(s));
      const bool last = s + 1 == coefficients_.steps.size();
      multiply_x(1, now, first ? of_each(&FirstScalars::product) : of_all(product(s)),
                 last ? iterates_.row_squares : nullptr);
      now = 1 - now;
    }
    return now;
  }

  // Q is the product of the steps' polynomials, and R the Gram matrix of Q X. Z is a step's polynomial without `a`,
  // which rounding Z would lose.
  int gram_form() const {
    const size_t steps = coefficients_.steps.size();
    int now = 0;
    constexpr int r = 0;
    int q = 1;
    constexpr int z = 2;
    int free = 3;
    ScalarsOf scale = of_each(&FirstScalars::product);  // normalizes X
    form_gram(x(now), r, of_each(&FirstScalars::gram));
    rescale();
    for (size_t s = 0; s < steps; ++s) {
      if (restarts(coefficients_, s)) {
        multiply_x(q, now, std::exchange(scale, of_all(one())));
        now = 1 - now;
        form_gram(x(now), r, of_all(one()));
      }
      if (s == 0 || restarts(coefficients_, s)) {
        form_z_and_q(z, q, s);
      } else {
        multiply_grams({.a = r, .b = r, .c = r, .d = z}, polynomial(s));
        multiply_grams({.a = q, .b = z, .c = q, .d = free}, of_all(product(s)));
        std::swap(q, free);
      }
      if (s + 1 == steps || restarts(coefficients_, s + 1)) continue;
      multiply_grams({.a = r, .b = z, .c = r, .d = free}, s == 0 ? of_each(&FirstScalars::grams) : of_all(product(s)));
      multiply_grams({.a = z, .b = free, .c = free, .d = r}, of_all(product(s)));
    }
    multiply_x(q, now, scale, iterates_.row_squares);
    return 1 - now;
  }

  void measure_gram_error(const Matrices& o, const UpdateMatrix* matrices) const {
    form_gram(o, 0, of_all(one()));
    write_gram_error(iterates_, matrices, queue_);
  }

 private:
  // Scalars on the device; those of consecutive matrices are `stride` apart.
  struct ScalarsOf {
    const Scalars* first;
    int64_t stride;
  };
  static ScalarsOf of_all(const Scalars* scalars) { return {scalars, 0}; }
  ScalarsOf of_each(Scalars FirstScalars::*which) const {
    return {&(iterates_.scalars->*which), static_cast<int64_t>(sizeof(FirstScalars) / sizeof(Scalars))};
  }
  const Scalars* one() const { return scalars_; }
  ScalarsOf polynomial(size_t s) const {  // c A^2 + b A
    return s == 0 ? of_each(&FirstScalars::polynomial) : of_all(scalars_ + 1 + 2 * s);
  }
  const Scalars* product(size_t s) const { return scalars_ + 2 + 2 * s; }  // B X + a X

  Matrices gram(int i) const { return iterates_.gram(i); }
  const Matrices& x(int i) const { return iterates_.x[static_cast<size_t>(i)]; }

  void multiply(const Gemm& gemm) const { cuda::multiply(gemm, queue_, iterates_.cublas); }

  Gemm gemm_of(const Matrices& a, const Matrices& b, const Matrices& c, const Matrices& d, ScalarsOf scalars) const {
    return {.type = half_of(iterates_.form),
            .a = a,
            .b = b,
            .c = c,
            .d = d,
            .batch = iterates_.batch,
            .scalars = scalars.first,
            .scalars_stride = scalars.stride};
  }

  void form_gram(const Matrices& from, int to, ScalarsOf scalars) const {
    Gemm gemm = gemm_of(from, from, {}, gram(to), scalars);
    gemm.symmetric = true;
    gemm.a_transposed = !wide_;
    gemm.b_transposed = wide_;
    multiply(gemm);
  }

  // gram(d) = alpha gram(a) gram(b) + beta gram(c). All of them commute.
  struct GramGemm {
    int a;
    int b;
    int c;
    int d;
  };
  Gemm gemm_of_grams(const GramGemm& g, ScalarsOf scalars) const {
    Gemm gemm = gemm_of(gram(g.a), gram(g.b), gram(g.c), gram(g.d), scalars);
    gemm.symmetric = true;
    gemm.b_transposed = true;
    return gemm;
  }
  void multiply_grams(const GramGemm& g, ScalarsOf scalars) const { multiply(gemm_of_grams(g, scalars)); }

  // Z = c R^2 + b R and Q = Z + a I, with R = gram(0).
  void form_z_and_q(int z, int q, size_t s) const {
    Gemm gemm = gemm_of_grams({.a = 0, .b = 0, .c = 0, .d = z}, polynomial(s));
    if (iterates_.cublas == nullptr) {
      gemm.d_and_identity = gram(q);
      gemm.identity = product(s);
    }
    multiply(gemm);
    if (iterates_.cublas != nullptr) add_identity(iterates_, z, q, product(s), queue_);
  }

  // x(1 - from) = alpha gram(q) X, or alpha X gram(q) for tall matrices, with X = x(from); the standard form adds beta
  // X.
  void multiply_x(int q, int from, ScalarsOf scalars, float* row_squares = nullptr) const {
    const Matrices added = iterates_.form == Form::kStandard ? x(from) : Matrices{};
    Gemm gemm = gemm_of(wide_ ? gram(q) : x(from), wide_ ? x(from) : gram(q), added, x(1 - from), scalars);
    gemm.b_transposed = !wide_;
    gemm.row_squares = row_squares;
    multiply(gemm);
  }

  void rescale() const {
    if (coefficients_.rescale == Coefficients::Rescale::kAol) rescale_lines(iterates_, queue_);
    if (coefficients_.rescale == Coefficients::Rescale::kGram) rescale_scalars(iterates_, queue_);
  }

  const Coefficients& coefficients_;
  const Iterates& iterates_;
  const bool wide_;
  LaunchQueue& queue_;
  const Scalars* scalars_;
};

}  // namespace

int newton_schulz(const Coefficients& coefficients, const Iterates& iterates, LaunchQueue& queue) {
  const Steps steps(coefficients, iterates, queue);
  return iterates.form == Form::kGram ? steps.gram_form() : steps.standard_form();
}

void measure_gram_error(const Iterates& iterates, const Matrices& o, const UpdateMatrix* matrices, LaunchQueue& queue) {
  Steps(Coefficients{}, iterates, queue).measure_gram_error(o, matrices);
}

}  // namespace muster::kernels::cuda
