// How values of each dtype and weights of each form are read and rounded, for the loops of the CPU and for the kernels
// of kernels/cuda. Everything has internal linkage: files compiled for different instruction sets include this, and the
// linker must not merge their copies.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/kernel_calls.h"

namespace muster::kernels::cpu {
namespace {

#ifdef __CUDACC__
#define MUSTER_INLINE __host__ __device__ __forceinline__
#else
#define MUSTER_INLINE [[gnu::always_inline]] inline
#endif

struct Bf16 {
  uint16_t bits;
};

MUSTER_INLINE uint32_t bits_of(float x) { return __builtin_bit_cast(uint32_t, x); }
MUSTER_INLINE float from_bits(uint32_t bits) { return __builtin_bit_cast(float, bits); }

MUSTER_INLINE float load(float x) { return x; }
MUSTER_INLINE float load(Bf16 x) { return from_bits(static_cast<uint32_t>(x.bits) << 16); }

MUSTER_INLINE void store(float& to, float x) { to = x; }
MUSTER_INLINE void store(Bf16& to, float x) {
  const uint32_t bits = bits_of(x);
  const uint32_t nearest = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  // Rounding must not turn a NaN into an infinity.
  const uint32_t quiet = (bits >> 16) | 0x40u;
  to.bits = static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet : nearest);
}

// A bijection of 64 bits in which every input bit reaches every output bit (the finalizer of SplitMix64).
MUSTER_INLINE uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

constexpr uint64_t kGolden = 0x9e3779b97f4a7c15u;

// A value's hash in a fingerprint: different for every place and every change of the value's bits.
MUSTER_INLINE uint64_t value_fingerprint(float x, int64_t place) {
  return mix(static_cast<uint64_t>(place) * 0x9e3779b97f4a7c15 + bits_of(x) + 1);
}

MUSTER_INLINE uint64_t rounding_key(const Rounding& rounding, uint64_t stream) {
  return mix(mix(mix(rounding.seed + kGolden) ^ (rounding.step + kGolden)) ^ (stream + kGolden));
}

MUSTER_INLINE void store_stochastic(Bf16& to, float x, uint64_t key, uint64_t index) {
  const uint32_t bits = bits_of(x);
  const uint32_t random = static_cast<uint32_t>(mix(key + index * kGolden) >> 48);
  const uint32_t carried = (bits + random) >> 16;
  const bool finite = (bits & 0x7f800000u) != 0x7f800000u;
  Bf16 plain;
  store(plain, x);
  to.bits = static_cast<uint16_t>(finite ? carried : plain.bits);
}

// Weights that have nothing but their values.
template <typename T>
struct PlainWeights {
  T* __restrict data;
  MUSTER_INLINE PlainWeights(const WeightBlock& w, int64_t offset, uint64_t, uint64_t)
      : data(static_cast<T*>(w.data) + offset) {}
  MUSTER_INLINE float get(int64_t j) const { return load(data[j]); }
  MUSTER_INLINE void set(int64_t j, float x) const { store(data[j], x); }
};

// One row of weights.
template <WeightForm form>
struct Weights : PlainWeights<std::conditional_t<form == WeightForm::kF32, float, Bf16>> {
  using PlainWeights<std::conditional_t<form == WeightForm::kF32, float, Bf16>>::PlainWeights;
};

// A weight that differs from its rounded master was changed from outside, by loading a model for example: it wins.
template <>
struct Weights<WeightForm::kBf16Master> {
  Bf16* __restrict data;
  float* __restrict master;
  MUSTER_INLINE Weights(const WeightBlock& w, int64_t offset, uint64_t, uint64_t)
      : data(static_cast<Bf16*>(w.data) + offset), master(static_cast<float*>(w.extra) + offset) {}
  MUSTER_INLINE float get(int64_t j) const {
    Bf16 rounded;
    store(rounded, master[j]);
    return rounded.bits == data[j].bits ? master[j] : load(data[j]);
  }
  MUSTER_INLINE void set(int64_t j, float x) const {
    master[j] = x;
    store(data[j], x);
  }
};

template <>
struct Weights<WeightForm::kBf16Mantissa> {
  uint16_t* __restrict data;
  uint16_t* __restrict mantissa;
  MUSTER_INLINE Weights(const WeightBlock& w, int64_t offset, uint64_t, uint64_t)
      : data(static_cast<uint16_t*>(w.data) + offset), mantissa(static_cast<uint16_t*>(w.extra) + offset) {}
  MUSTER_INLINE float get(int64_t j) const { return from_bits(static_cast<uint32_t>(data[j]) << 16 | mantissa[j]); }
  MUSTER_INLINE void set(int64_t j, float x) const {
    const uint32_t bits = bits_of(x);
    data[j] = static_cast<uint16_t>(bits >> 16);
    mantissa[j] = static_cast<uint16_t>(bits & 0xffffu);
  }
};

template <>
struct Weights<WeightForm::kBf16Stochastic> {
  Bf16* __restrict data;
  uint64_t key;
  uint64_t first;  // index of the row's first element
  MUSTER_INLINE Weights(const WeightBlock& w, int64_t offset, uint64_t k, uint64_t index)
      : data(static_cast<Bf16*>(w.data) + offset), key(k), first(index) {}
  MUSTER_INLINE float get(int64_t j) const { return load(data[j]); }
  MUSTER_INLINE void set(int64_t j, float x) const {
    store_stochastic(data[j], x, key, first + static_cast<uint64_t>(j));
  }
};

// lerp(from, to, part), with the same rounding on every machine.
MUSTER_INLINE float toward(float from, float to, float part) { return from + (to - from) * part; }

// 1 / (1 - beta^step), by squaring, because libraries' pow() round differently.
MUSTER_INLINE double bias_correction(double beta, int64_t step) {
  double power = 1;
  for (double base = beta; step > 0; step /= 2, base *= base) {
    if (step % 2 != 0) power *= base;
  }
  return 1 / (1 - power);
}

MUSTER_INLINE Rates read(const Rates* rates) { return rates == nullptr ? Rates{} : *rates; }

// The factor by which decay shrinks a weight.
MUSTER_INLINE float kept(const Rates& rates, double multiplier) {
  return static_cast<float>(1 - rates.lr * multiplier * rates.weight_decay);
}

// The rates that AdamW and Lion have in common, in f32.
struct MomentRates {
  float rest1;
  float rest2;
  float lr;

  template <typename Options>
  MUSTER_INLINE MomentRates(const Options& options, const ElementRange& range)
      : rest1(static_cast<float>(1 - options.beta1)),
        rest2(static_cast<float>(1 - options.beta2)),
        lr(static_cast<float>(read(options.rates).lr * range.multiplier)) {}
};

MUSTER_INLINE float factor_of_row(const RowFactors& rows, int64_t row) {
  const int32_t number = rows.number_of_row[row];
  return number < 0 ? 1.0f : rows.factors[number];
}

// The weight after a step: keep w, or w where decay does not apply, minus the change.
template <Decay decay>
MUSTER_INLINE float decayed(float w, float change, float keep) {
  if constexpr (decay == Decay::kPlain) {
    return w * keep - change;
  } else {
    // Compares signs, because a product of two small numbers underflows to 0; with bitwise operators, because branches
    // do not vectorise.
    const bool opposite = static_cast<bool>(((w < 0) & (change > 0)) | ((w > 0) & (change < 0)));
    return w * (opposite ? 1.0f : keep) - change;
  }
}

}  // namespace
}  // namespace muster::kernels::cpu
