// Weight forms and decays as template arguments, for the loops of every backend. Everything has internal linkage:
// files compiled for different instruction sets include this, and the linker must not merge their copies.
#pragma once

#include "kernels/kernel_calls.h"

namespace muster::kernels {
namespace {

template <typename T>
struct Type {
  using type = T;
};

template <auto v>
struct Value {};

// Calls f(Value<form>{}).
template <typename F>
[[gnu::always_inline]] inline void with_form(WeightForm form, const F& f) {
  switch (form) {
    case WeightForm::kF32:
      return f(Value<WeightForm::kF32>{});
    case WeightForm::kBf16:
      return f(Value<WeightForm::kBf16>{});
    case WeightForm::kBf16Master:
      return f(Value<WeightForm::kBf16Master>{});
    case WeightForm::kBf16Mantissa:
      return f(Value<WeightForm::kBf16Mantissa>{});
    case WeightForm::kBf16Stochastic:
      return f(Value<WeightForm::kBf16Stochastic>{});
  }
}

// Calls f(Value<decay>{}).
template <typename F>
[[gnu::always_inline]] inline void with_decay(Decay decay, const F& f) {
  if (decay == Decay::kCautious) {
    f(Value<Decay::kCautious>{});
  } else {
    f(Value<Decay::kPlain>{});
  }
}

}  // namespace
}  // namespace muster::kernels
