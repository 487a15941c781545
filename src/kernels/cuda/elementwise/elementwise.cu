#include "kernels/cuda/elementwise/elementwise.h"
#include "kernels/cuda/elementwise/weight_forms.cuh"

namespace muster::kernels::cuda {

namespace {

using cpu::decayed;
using cpu::load;
using cpu::MomentRates;
using cpu::store;
using cpu::toward;

template <typename Options>
__device__ float gradient_scale(const Options& options) {
  return static_cast<float>(options.grad_scale * (options.clip == nullptr ? 1.0 : *options.clip));
}

template <typename G, typename M, typename U, MomentumForm kForm, bool kNesterov>
struct MomentumBody {
  template <int N>
  struct Values {
    G grad[N];
    M momentum[N];
  };

  Operand<const G> grad;
  Operand<M> momentum;
  Operand<U> update;
  float mu;
  float rest;
  float scale;

  __device__ MomentumBody(const MomentumOptions& options, const MomentumBlock& block, const Chunk& chunk)
      : grad(static_cast<const G*>(block.grad), block.grad_stride, chunk),
        momentum(static_cast<M*>(block.momentum), block.momentum_stride, chunk),
        update(static_cast<U*>(block.update), block.update_stride, chunk),
        mu(static_cast<float>(cpu::read(options.rates).momentum)),
        rest(static_cast<float>(1 - cpu::read(options.rates).momentum)),
        scale(gradient_scale(options)) {}

  template <int N>
  __device__ bool aligned(const Chunk& chunk) const {
    return (grad.absent() || grad.template aligned<N>(chunk)) && momentum.template aligned<N>(chunk) &&
           (update.absent() || update.template aligned<N>(chunk));
  }
  template <int N>
  __device__ void read(Place p, Values<N>& v) const {
    if (!grad.absent()) read_once(v.grad, grad.at(p));
    read_once(v.momentum, momentum.at(p));
  }
  template <int N>
  __device__ void write(Place p, Values<N>& v) const {
    U out[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float g = grad.absent() ? 0.0F : load(v.grad[i]) * scale;
      const float before = load(v.momentum[i]);
      const float m = kForm == MomentumForm::kEma ? toward(before, g, rest) : mu * before + g;
      float u = m;
      if constexpr (kNesterov) u = kForm == MomentumForm::kEma ? toward(g, m, mu) : mu * m + g;
      store(v.momentum[i], m);
      store(out[i], u);
    }
    write_once(momentum.at(p), v.momentum);
    if (!update.absent()) cuda::write(update.at(p), out);  // not write_once: it is read soon
  }
};

template <typename U, WeightForm kForm, Decay kDecay, bool kScaled>
struct ApplyBody {
  using Weight = WeightOperand<kForm>;
  template <int N>
  struct Values {
    U update[N];
    typename Weight::template Values<N> weight;
  };

  Operand<const U> update;
  Weight weight;
  RowFactors row_factors;
  float step;
  float keep;

  __device__ ApplyBody(const ApplyOptions& options, const ApplyBlock& block, const Chunk& chunk)
      : update(static_cast<const U*>(block.update), block.update_stride, chunk),
        weight(block.weight, options.rounding, chunk),
        row_factors(block.row_factors),
        step(static_cast<float>(cpu::read(options.rates).lr * block.multiplier * block.scale)),
        keep(cpu::kept(cpu::read(options.rates), block.multiplier)) {}

  template <int N>
  __device__ bool aligned(const Chunk& chunk) const {
    return (absent() || update.template aligned<N>(chunk)) && weight.template aligned<N>(chunk);
  }
  template <int N>
  __device__ void read(Place p, Values<N>& v) const {
    if (!absent()) read_once(v.update, update.at(p));
    weight.read(p, v.weight);
  }
  template <int N>
  __device__ void write(Place p, Values<N>& v) const {
    const ElementFactors<N, kScaled> factors(row_factors, weight.index(p));
    weight.write(p, v.weight, [&](int i, float w) {
      return factors.scaled(i, absent() ? w : decayed<kDecay>(w, load(v.update[i]) * step, keep));
    });
  }

 private:
  __device__ bool absent() const { return kScaled && update.absent(); }
};

// How AdamW and Lion update moments, and by how much gradient g changes a weight.

struct AdamWRule : MomentRates {
  using Options = AdamWOptions;
  static constexpr bool kHasSecond = true;

  float correct1;
  float correct2;
  float eps;

  // All threads must call this: two of them compute the bias corrections, which are slow, for the thread block.
  __device__ AdamWRule(const AdamWOptions& options, const ElementRange& range)
      : MomentRates(options, range), eps(static_cast<float>(options.eps)) {
    __shared__ float corrections[2];
    if (threadIdx.x < 2) {
      const int64_t step = range.updates == nullptr ? options.step : *range.updates + 1;
      const double beta = threadIdx.x == 0 ? options.beta1 : options.beta2;
      corrections[threadIdx.x] = static_cast<float>(cpu::bias_correction(beta, step));
    }
    __syncthreads();
    correct1 = corrections[0];
    correct2 = corrections[1];
  }

  __device__ float change(float g, float& first, float& second) const {
    first = toward(first, g, rest1);
    second = toward(second, g * g, rest2);
    return lr * ((first * correct1) / (sqrtf(second * correct2) + eps));
  }
};

struct LionRule : MomentRates {
  using Options = LionOptions;
  static constexpr bool kHasSecond = false;

  __device__ LionRule(const LionOptions& options, const ElementRange& range) : MomentRates(options, range) {}

  __device__ float change(float g, float& first, float&) const {
    const float direction = toward(first, g, rest1);
    first = toward(first, g, rest2);
    if (isnan(direction)) return direction;  // NaN reaches the weight instead of stopping it
    return direction > 0 ? lr : direction < 0 ? -lr : 0.0F;
  }
};

template <typename Rule, typename G, WeightForm kForm, Decay kDecay, bool kScaled>
struct RangeBody {
  using Weight = WeightOperand<kForm>;
  template <int N>
  struct Values {
    G grad[N];
    float first[N];
    float second[N];
    typename Weight::template Values<N> weight;
  };

  Operand<const G> grad;
  Operand<float> first;
  Operand<float> second;
  Weight weight;
  RowFactors row_factors;
  Rule rule;
  float scale;
  float keep;

  __device__ RangeBody(const typename Rule::Options& options, const ElementRange& range, const Chunk& chunk)
      : grad(static_cast<const G*>(range.grad), 0, chunk),
        first(range.first, 0, chunk),
        second(range.second, 0, chunk),
        weight(range.weight, options.rounding, chunk),
        row_factors(range.row_factors),
        rule(options, range),
        scale(gradient_scale(options)),
        keep(cpu::kept(cpu::read(options.rates), range.multiplier)) {}

  template <int N>
  __device__ bool aligned(const Chunk& chunk) const {
    return (grad.absent() || grad.template aligned<N>(chunk)) && first.template aligned<N>(chunk) &&
           (!Rule::kHasSecond || second.template aligned<N>(chunk)) && weight.template aligned<N>(chunk);
  }
  template <int N>
  __device__ void read(Place p, Values<N>& v) const {
    if (!grad.absent()) read_once(v.grad, grad.at(p));
    read_once(v.first, first.at(p));
    if constexpr (Rule::kHasSecond) read_once(v.second, second.at(p));
    weight.read(p, v.weight);
  }
  template <int N>
  __device__ void write(Place p, Values<N>& v) const {
    const ElementFactors<N, kScaled> factors(row_factors, weight.index(p));
    weight.write(p, v.weight, [&](int i, float w) {
      const float g = grad.absent() ? 0.0F : load(v.grad[i]) * scale;
      return factors.scaled(i, decayed<kDecay>(w, rule.change(g, v.first[i], v.second[i]), keep));
    });
    write_once(first.at(p), v.first);
    if constexpr (Rule::kHasSecond) write_once(second.at(p), v.second);
  }
};

template <WeightForm kForm>
struct ChangeBody {
  using Weight = WeightOperand<kForm>;
  template <int N>
  struct Values {
    float values[N];
    typename Weight::template Values<N> weight;
  };

  Operand<float> values;
  Weight weight;

  __device__ ChangeBody(const NoOptions&, const ChangeBlock& block, const Chunk& chunk)
      : values(block.values, block.columns, chunk), weight(block.weight, Rounding{}, chunk) {}

  template <int N>
  __device__ bool aligned(const Chunk& chunk) const {
    return all_aligned<N>(chunk, values, weight);
  }
  template <int N>
  __device__ void read(Place p, Values<N>& v) const {
    cuda::read(v.values, values.at(p));
    weight.read(p, v.weight);
  }
  template <int N>
  __device__ void write(Place p, Values<N>& v) const {
    Weight::for_each(v.weight, [&](int i, float w) { v.values[i] = w - v.values[i]; });
    cuda::write(values.at(p), v.values);
  }
};

template <typename F>
void with_momentum(const MomentumOptions& options, const F& f) {
  constexpr MomentumForm kEma = MomentumForm::kEma;
  constexpr MomentumForm kSum = MomentumForm::kSum;
  if (options.form == kEma) {
    options.nesterov ? f(Value<kEma>{}, Value<true>{}) : f(Value<kEma>{}, Value<false>{});
  } else {
    options.nesterov ? f(Value<kSum>{}, Value<true>{}) : f(Value<kSum>{}, Value<false>{});
  }
}

template <typename Rule>
void change_ranges(const char* what, const typename Rule::Options& options, std::span<const ElementRange> ranges,
                   LaunchQueue& queue) {
  with_dtype(options.grad, "gradient", [&]<typename G>(Type<G>) {
    with_form(options.form, [&]<WeightForm kForm>(Value<kForm>) {
      with_decay(options.decay, [&]<Decay kDecay>(Value<kDecay>) {
        with_scaled(ranges, [&]<bool kScaled>(Value<kScaled>) {
          using Body = RangeBody<Rule, G, kForm, kDecay, kScaled>;
          enqueue(what, elementwise_kernel<Body, typename Rule::Options, ElementRange>, options, ranges, queue);
        });
      });
    });
  });
}

}  // namespace

void momentum_pack(const MomentumOptions& options, std::span<const MomentumBlock> blocks, LaunchQueue& queue) {
  with_dtype(options.grad, "gradient", [&]<typename G>(Type<G>) {
    with_dtype(options.momentum, "momentum", [&]<typename M>(Type<M>) {
      with_dtype(options.wire, "wire", [&]<typename U>(Type<U>) {
        with_momentum(options, [&]<MomentumForm kForm, bool kNesterov>(Value<kForm>, Value<kNesterov>) {
          using Body = MomentumBody<G, M, U, kForm, kNesterov>;
          enqueue("momentum", elementwise_kernel<Body, MomentumOptions, MomentumBlock>, options, blocks, queue);
        });
      });
    });
  });
}

void apply(const ApplyOptions& options, std::span<const ApplyBlock> blocks, LaunchQueue& queue) {
  with_dtype(options.wire, "wire", [&]<typename U>(Type<U>) {
    with_form(options.form, [&]<WeightForm kForm>(Value<kForm>) {
      with_decay(options.decay, [&]<Decay kDecay>(Value<kDecay>) {
        with_scaled(blocks, [&]<bool kScaled>(Value<kScaled>) {
          using Body = ApplyBody<U, kForm, kDecay, kScaled>;
          enqueue("apply", elementwise_kernel<Body, ApplyOptions, ApplyBlock>, options, blocks, queue);
        });
      });
    });
  });
}

void adamw(const AdamWOptions& options, std::span<const ElementRange> ranges, LaunchQueue& queue) {
  change_ranges<AdamWRule>("adamw", options, ranges, queue);
}

void lion(const LionOptions& options, std::span<const ElementRange> ranges, LaunchQueue& queue) {
  change_ranges<LionRule>("lion", options, ranges, queue);
}

void subtract_from_weights(WeightForm form, std::span<const ChangeBlock> blocks, LaunchQueue& queue) {
  with_form(form, [&]<WeightForm kForm>(Value<kForm>) {
    enqueue("subtract from weights", elementwise_kernel<ChangeBody<kForm>, NoOptions, ChangeBlock>, NoOptions{}, blocks,
            queue);
  });
}

}  // namespace muster::kernels::cuda
