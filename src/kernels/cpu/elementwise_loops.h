// The loops behind Elementwise: plain C++ that the compiler vectorises. Each elementwise_<instruction set>.cpp includes
// this and is compiled with its own flags. Do not call inline functions of the standard library here: the linker could
// keep this file's copy of one and run it on machines that lack the instructions.
#pragma once

#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/elementwise_values.h"
#include "kernels/weight_form_dispatch.h"

namespace muster::kernels::cpu {
namespace {

// A dtype as a template argument.
template <typename F>
MUSTER_INLINE void with_dtype(Dtype dtype, F f) {
  if (dtype == Dtype::kBf16) {
    f(Type<Bf16>{});
  } else {
    f(Type<float>{});
  }
}

template <typename G, typename M, typename U, MomentumForm form, bool nesterov>
void momentum_block(const MomentumOptions& options, const MomentumBlock& block) {
  const Rates rates = read(options.rates);
  const float mu = static_cast<float>(rates.momentum);
  const float rest = static_cast<float>(1 - rates.momentum);
  const float scale = static_cast<float>(options.grad_scale);
  for (int64_t i = 0; i < block.rows; ++i) {
    const G* __restrict grad = static_cast<const G*>(block.grad);
    M* __restrict momentum = static_cast<M*>(block.momentum) + i * block.momentum_stride;
    U* __restrict update = static_cast<U*>(block.update) + i * block.update_stride;
    const auto element = [=](int64_t j, float g) __attribute__((always_inline)) {
      const float before = load(momentum[j]);
      const float m = form == MomentumForm::kEma ? toward(before, g, rest) : mu * before + g;
      float u = m;
      if constexpr (nesterov) u = form == MomentumForm::kEma ? toward(g, m, mu) : mu * m + g;
      store(momentum[j], m);
      store(update[j], u);
    };
    if (grad == nullptr) {
      for (int64_t j = 0; j < block.columns; ++j) element(j, 0.0f);
    } else {
      grad += i * block.grad_stride;
      for (int64_t j = 0; j < block.columns; ++j) element(j, load(grad[j]) * scale);
    }
  }
}

// The gradient as an update, without momentum.
template <typename G, typename U>
void gradient_block(const MomentumOptions& options, const MomentumBlock& block) {
  const float scale = static_cast<float>(options.grad_scale);
  for (int64_t i = 0; i < block.rows; ++i) {
    const G* __restrict grad = static_cast<const G*>(block.grad);
    U* __restrict update = static_cast<U*>(block.update) + i * block.update_stride;
    if (grad != nullptr) grad += i * block.grad_stride;
    for (int64_t j = 0; j < block.columns; ++j) store(update[j], grad == nullptr ? 0.0f : load(grad[j]) * scale);
  }
}

void momentum_pack(const MomentumOptions& options, const MomentumBlock& block) {
  if (block.momentum == nullptr) {
    return with_dtype(options.grad, [&]<typename G>(Type<G>) {
      with_dtype(options.wire, [&]<typename U>(Type<U>) { gradient_block<G, U>(options, block); });
    });
  }
  with_dtype(options.grad, [&]<typename G>(Type<G>) {
    with_dtype(options.momentum, [&]<typename M>(Type<M>) {
      with_dtype(options.wire, [&]<typename U>(Type<U>) {
        constexpr MomentumForm ema = MomentumForm::kEma;
        constexpr MomentumForm sum = MomentumForm::kSum;
        if (options.form == ema) {
          options.nesterov ? momentum_block<G, M, U, ema, true>(options, block)
                           : momentum_block<G, M, U, ema, false>(options, block);
        } else {
          options.nesterov ? momentum_block<G, M, U, sum, true>(options, block)
                           : momentum_block<G, M, U, sum, false>(options, block);
        }
      });
    });
  });
}

// Calls work(first, end, factor) for the columns of each row of the parameter; `index` is the index of column 0 there.
template <typename Work>
MUSTER_INLINE void for_row_factors(const RowFactors& rows, int64_t index, int64_t columns, Work work) {
  if (rows.factors == nullptr) return work(0, columns, 1.0f);
  for (int64_t first = 0; first < columns;) {
    const int64_t row = (index + first) / rows.row_length;
    const int64_t next = (row + 1) * rows.row_length - index;
    const int64_t end = next < columns ? next : columns;
    work(first, end, factor_of_row(rows, row));
    first = end;
  }
}

template <typename U, WeightForm form, Decay decay>
void apply_block(const ApplyOptions& options, const ApplyBlock& block) {
  const Rates rates = read(options.rates);
  const float step = static_cast<float>(rates.lr * block.multiplier * block.scale);
  const float keep = kept(rates, block.multiplier);
  const uint64_t key = rounding_key(options.rounding, block.weight.stream);
  for (int64_t i = 0; i < block.rows; ++i) {
    const int64_t index = block.weight.first_index + i * block.weight.row_index_stride;
    const U* __restrict update = static_cast<const U*>(block.update);
    const Weights<form> weights(block.weight, i * block.weight.stride, key, static_cast<uint64_t>(index));
    if (update == nullptr) {
      for_row_factors(
          block.row_factors, index,
          block.columns, [=](int64_t first, int64_t end, float factor) __attribute__((always_inline)) {
            for (int64_t j = first; j < end; ++j) weights.set(j, weights.get(j) * factor);
          });
      continue;
    }
    update += i * block.update_stride;
    const auto columns = [=](int64_t first, int64_t end, float factor) __attribute__((always_inline)) {
      for (int64_t j = first; j < end; ++j) {
        weights.set(j, decayed<decay>(weights.get(j), load(update[j]) * step, keep) * factor);
      }
    };
    for_row_factors(block.row_factors, index, block.columns, columns);
  }
}

void apply(const ApplyOptions& options, const ApplyBlock& block) {
  with_dtype(options.wire, [&]<typename U>(Type<U>) {
    with_form(options.form, [&]<WeightForm form>(Value<form>) {
      with_decay(options.decay, [&]<Decay decay>(Value<decay>) { apply_block<U, form, decay>(options, block); });
    });
  });
}

// The moments of a range, and by how much gradient g of element j changes its weight.

struct AdamWRule : MomentRates {
  using Options = AdamWOptions;

  float* __restrict first;
  float* __restrict second;
  float correct1;
  float correct2;
  float eps;

  MUSTER_INLINE AdamWRule(const AdamWOptions& options, const ElementRange& range)
      : MomentRates(options, range),
        first(range.first),
        second(range.second),
        correct1(static_cast<float>(bias_correction(options.beta1, options.step))),
        correct2(static_cast<float>(bias_correction(options.beta2, options.step))),
        eps(static_cast<float>(options.eps)) {}

  MUSTER_INLINE float change(int64_t j, float g) const {
    const float m = toward(first[j], g, rest1);
    const float v = toward(second[j], g * g, rest2);
    first[j] = m;
    second[j] = v;
    return lr * ((m * correct1) / (__builtin_sqrtf(v * correct2) + eps));
  }
};

struct LionRule : MomentRates {
  using Options = LionOptions;

  float* __restrict momentum;

  MUSTER_INLINE LionRule(const LionOptions& options, const ElementRange& range)
      : MomentRates(options, range), momentum(range.first) {}

  MUSTER_INLINE float change(int64_t j, float g) const {
    const float direction = toward(momentum[j], g, rest1);
    momentum[j] = toward(momentum[j], g, rest2);
    const float up = direction > 0 ? lr : 0.0f;  // a nested conditional vectorises worse
    const float change = direction < 0 ? -lr : up;
    return direction == direction ? change : direction;  // NaN reaches the weight instead of stopping it
  }
};

template <typename Rule, typename G, WeightForm form, Decay decay>
void change_range(const typename Rule::Options& options, const ElementRange& range) {
  const Rule rule(options, range);
  const float scale = static_cast<float>(options.grad_scale);
  const float keep = kept(read(options.rates), range.multiplier);
  const uint64_t key = rounding_key(options.rounding, range.weight.stream);
  const G* __restrict grad = static_cast<const G*>(range.grad);
  const Weights<form> weights(range.weight, 0, key, static_cast<uint64_t>(range.weight.first_index));
  const auto elements = [=](int64_t first, int64_t end, float factor) __attribute__((always_inline)) {
    const auto element = [=](int64_t j, float g) __attribute__((always_inline)) {
      const float change = rule.change(j, g);
      weights.set(j, decayed<decay>(weights.get(j), change, keep) * factor);
    };
    if (grad == nullptr) {
      for (int64_t j = first; j < end; ++j) element(j, 0.0f);
    } else {
      for (int64_t j = first; j < end; ++j) element(j, load(grad[j]) * scale);
    }
  };
  for_row_factors(range.row_factors, range.weight.first_index, range.count, elements);
}

template <typename Rule>
void change_range(const typename Rule::Options& options, const ElementRange& range) {
  with_dtype(options.grad, [&]<typename G>(Type<G>) {
    with_form(options.form, [&]<WeightForm form>(Value<form>) {
      with_decay(options.decay, [&]<Decay decay>(Value<decay>) { change_range<Rule, G, form, decay>(options, range); });
    });
  });
}

void subtract_from_weights(WeightForm weight_form, const ChangeBlock& block) {
  with_form(weight_form, [&]<WeightForm form>(Value<form>) {
    for (int64_t i = 0; i < block.rows; ++i) {
      const Weights<form> weights(block.weight, i * block.weight.stride, 0, 0);
      float* __restrict values = block.values + i * block.columns;
      for (int64_t j = 0; j < block.columns; ++j) values[j] = weights.get(j) - values[j];
    }
  });
}

// Sixteen lanes on every machine: another number would change the result's bits.
template <typename T>
double sum_squares_of(const T* __restrict values, int64_t count) {
  constexpr int kLanes = 16;
  double lanes[kLanes] = {};
  int64_t j = 0;
  for (; j + kLanes <= count; j += kLanes) {
    for (int l = 0; l < kLanes; ++l) {
      const double x = load(values[j + l]);
      lanes[l] += x * x;
    }
  }
  for (int l = 0; j < count; ++j, ++l) {
    const double x = load(values[j]);
    lanes[l] += x * x;
  }
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  }
  return lanes[0];
}

double sum_squares(Dtype dtype, const void* values, int64_t count) {
  double sum = 0;
  with_dtype(dtype, [&]<typename T>(Type<T>) { sum = sum_squares_of(static_cast<const T*>(values), count); });
  return sum;
}

void add_squares(const float* __restrict values, int64_t count, double* __restrict sums) {
  for (int64_t j = 0; j < count; ++j) {
    const double x = values[j];
    sums[j] += x * x;
  }
}

void normalize(Dtype dtype, const void* values, int64_t count, double factor, float* to) {
  with_dtype(dtype, [&]<typename T>(Type<T>) {
    const T* __restrict from = static_cast<const T*>(values);
    float* __restrict out = to;
    for (int64_t j = 0; j < count; ++j) out[j] = static_cast<float>(static_cast<double>(load(from[j])) * factor);
  });
}

// Not __restrict: `to` may be `values`.
void scale(const float* values, int64_t count, float factor, Dtype wire, void* to) {
  with_dtype(wire, [&]<typename T>(Type<T>) {
    T* out = static_cast<T*>(to);
    for (int64_t j = 0; j < count; ++j) store(out[j], values[j] * factor);
  });
}

void multiply(const float* values, int64_t count, const float* factors, Dtype wire, void* to) {
  with_dtype(wire, [&]<typename T>(Type<T>) {
    T* out = static_cast<T*>(to);
    for (int64_t j = 0; j < count; ++j) store(out[j], values[j] * factors[j]);
  });
}

MUSTER_INLINE bool non_finite(float x) { return (bits_of(x) & 0x7f800000u) == 0x7f800000u; }

uint64_t fingerprint(Dtype dtype, const void* values, int64_t count, int64_t place) {
  uint64_t sum = 0;
  with_dtype(dtype, [&]<typename T>(Type<T>) {
    const T* x = static_cast<const T*>(values);
    uint64_t found = 0;
    for (int64_t j = 0; j < count; ++j) found += value_fingerprint(load(x[j]), place + j);
    sum = found;
  });
  return sum;
}

bool all_finite(Dtype dtype, const void* values, int64_t count) {
  uint32_t bad = 0;
  with_dtype(dtype, [&]<typename T>(Type<T>) {
    const T* x = static_cast<const T*>(values);
    uint32_t found = 0;
    for (int64_t j = 0; j < count; ++j) found |= non_finite(load(x[j])) ? 1u : 0u;
    bad = found;
  });
  return bad == 0;
}

void zero_non_finite(Dtype dtype, void* values, int64_t count) {
  with_dtype(dtype, [&]<typename T>(Type<T>) {
    T* x = static_cast<T*>(values);
    for (int64_t j = 0; j < count; ++j) {
      const float value = load(x[j]);
      store(x[j], non_finite(value) ? 0.0f : value);
    }
  });
}

constexpr Elementwise elementwise_table(const char* name) {
  return {.name = name,
          .momentum_pack = momentum_pack,
          .apply = apply,
          .adamw = change_range<AdamWRule>,
          .lion = change_range<LionRule>,
          .subtract_from_weights = subtract_from_weights,
          .sum_squares = sum_squares,
          .add_squares = add_squares,
          .normalize = normalize,
          .scale = scale,
          .multiply = multiply,
          .fingerprint = fingerprint,
          .all_finite = all_finite,
          .zero_non_finite = zero_non_finite};
}

}  // namespace
}  // namespace muster::kernels::cpu
