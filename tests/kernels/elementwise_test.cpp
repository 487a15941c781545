#include "kernels/cpu/elementwise.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "kernel_support.h"
#include "muster/error.h"

namespace muster::kernels {
namespace {

constexpr WeightForm kForms[] = {WeightForm::kF32, WeightForm::kBf16, WeightForm::kBf16Master,
                                 WeightForm::kBf16Mantissa, WeightForm::kBf16Stochastic};
// Sizes around vectors of 4, 8, 16 and 32, and around pieces of 65536.
constexpr int64_t kLengths[] = {0, 1, 3, 8, 15, 16, 17, 31, 33, 100, 65537};

// A buffer of either dtype, starting `offset` elements past an aligned address.
class Buffer {
 public:
  Buffer(Dtype dtype, const std::vector<float>& values, size_t offset = 0) : dtype_(dtype), offset_(offset) {
    f32_.assign(offset, 0);
    f32_.insert(f32_.end(), values.begin(), values.end());
    if (dtype == Dtype::kBf16) bf16_ = to_bf16(f32_);
  }
  void* data() {
    if (dtype_ == Dtype::kBf16) return bf16_.data() + offset_;
    return f32_.data() + offset_;
  }
  std::vector<float> values() const {
    std::vector<float> all = dtype_ == Dtype::kBf16 ? from_bf16(bf16_) : f32_;
    all.erase(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(offset_));
    return all;
  }

 private:
  Dtype dtype_;
  size_t offset_;
  std::vector<float> f32_;
  std::vector<uint16_t> bf16_;
};

// Weights of any form, and the values they stand for.
struct Stored {
  WeightForm form;
  std::vector<float> f32;  // weights or master
  std::vector<uint16_t> bf16;
  std::vector<uint16_t> mantissa;

  Stored(WeightForm f, const std::vector<float>& values) : form(f), f32(values), bf16(to_bf16(values)) {
    for (size_t i = 0; form == WeightForm::kBf16Mantissa && i < values.size(); ++i) {
      const uint32_t bits = std::bit_cast<uint32_t>(values[i]);
      bf16[i] = static_cast<uint16_t>(bits >> 16);
      mantissa.push_back(static_cast<uint16_t>(bits & 0xffff));
    }
  }
  WeightBlock block() {
    WeightBlock weight;
    weight.data = form == WeightForm::kF32 ? static_cast<void*>(f32.data()) : bf16.data();
    if (form == WeightForm::kBf16Master) weight.extra = f32.data();
    if (form == WeightForm::kBf16Mantissa) weight.extra = mantissa.data();
    return weight;
  }
  std::vector<float> values() const {
    if (form == WeightForm::kF32 || form == WeightForm::kBf16Master) return f32;
    if (form != WeightForm::kBf16Mantissa) return from_bf16(bf16);
    std::vector<float> result;
    for (size_t i = 0; i < bf16.size(); ++i) {
      result.push_back(std::bit_cast<float>(uint32_t{bf16[i]} << 16 | mantissa[i]));
    }
    return result;
  }
  bool operator==(const Stored& other) const {
    const bool f32_counts = form == WeightForm::kF32 || form == WeightForm::kBf16Master;
    const bool bf16_counts = form != WeightForm::kF32;
    return (!f32_counts || f32 == other.f32) && (!bf16_counts || bf16 == other.bf16) && mantissa == other.mantissa;
  }
  // Rounding of one step, relative to the weight: f32 twice, or bf16 once (stochastic: up to a whole unit).
  double tolerance() const {
    if (form == WeightForm::kBf16) return 0x1p-8;
    return form == WeightForm::kBf16Stochastic ? 0x1p-7 : 4e-7;
  }
};

TEST(Momentum, AgreesWithTheReferenceInEveryDtypeAndForm) {
  const auto kernels = make_cpu_kernels({});
  const std::vector<float> grad = random_values(333, 1);
  const std::vector<float> momentum = random_values(333, 2);
  for (const Dtype grad_dtype : {Dtype::kF32, Dtype::kBf16}) {
    for (const Dtype momentum_dtype : {Dtype::kF32, Dtype::kBf16}) {
      for (const Dtype wire : {Dtype::kF32, Dtype::kBf16}) {
        for (const MomentumForm form : {MomentumForm::kEma, MomentumForm::kSum}) {
          for (const bool nesterov : {true, false}) {
            Buffer g(grad_dtype, grad);
            Buffer m(momentum_dtype, momentum);
            Buffer u(wire, std::vector<float>(333));
            reference::Vector expected_m = to_double(m.values());
            reference::MomentumOptions expected_options{.mu = 0.9, .nesterov = nesterov, .grad_scale = 0.25};
            if (form == MomentumForm::kSum) expected_options.form = reference::MomentumOptions::Form::kSum;
            const auto expected_u = momentum_update(expected_options, to_double(g.values()), expected_m);
            const Rates rates{.momentum = 0.9};
            const MomentumOptions options{grad_dtype, momentum_dtype, wire, form, nesterov, 0.25, nullptr, &rates};
            const MomentumBlock block{1, 333, g.data(), 333, m.data(), 333, u.data(), 333};
            kernels->momentum_pack(options, std::span(&block, 1));
            // f32 arithmetic on values of up to 8, then one rounding to the dtype.
            const auto tolerance = [](Dtype d, double x) {
              return 2e-6 + (d == Dtype::kBf16 ? 0x1p-8 * std::abs(x) : 0);
            };
            for (size_t i = 0; i < 333; ++i) {
              ASSERT_NEAR(m.values()[i], expected_m[i], tolerance(momentum_dtype, expected_m[i]));
              ASSERT_NEAR(u.values()[i], expected_u[i], tolerance(wire, expected_u[i]));
            }
          }
        }
      }
    }
  }
}

// Every path, length, stride, offset and thread must give what the portable path gives for each element alone.
TEST(Momentum, EveryPathGivesTheSameBits) {
  for (const int64_t columns : kLengths) {
    const int64_t rows = columns > 1000 ? 2 : 5;
    const int64_t stride = columns + 3;
    const std::vector<float> grad = random_values(rows * stride, 3);
    const std::vector<float> momentum = random_values(rows * stride, 4);
    for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16}) {
      const MomentumOptions options{dtype, dtype, dtype, MomentumForm::kEma, true, 0.3};
      std::vector<float> expected_m;
      std::vector<float> expected_u;
      for (const cpu::Elementwise* set : all_elementwise()) {
        for (const size_t offset : {0, 1, 5}) {
          for (const int threads : {1, 3}) {
            Buffer g(dtype, grad, offset);
            Buffer m(dtype, momentum, offset / 2);
            Buffer u(dtype, std::vector<float>(grad.size(), -7), offset);
            const MomentumBlock block{rows, columns, g.data(), stride, m.data(), stride, u.data(), stride};
            if (expected_m.empty()) {
              for (int64_t i = 0; i < rows * columns; ++i) {
                const int64_t at = i / columns * stride + i % columns;
                const int64_t bytes = at * byte_size(dtype);
                const auto move = [bytes](void* p) { return static_cast<void*>(static_cast<char*>(p) + bytes); };
                set->momentum_pack(options, {1, 1, move(g.data()), 0, move(m.data()), 0, move(u.data()), 0});
              }
              expected_m = m.values();
              expected_u = u.values();
              continue;
            }
            cpu::make_kernels({.threads = threads}, *set)->momentum_pack(options, std::span(&block, 1));
            ASSERT_EQ(m.values(), expected_m) << set->name << " " << columns << " " << offset;
            ASSERT_EQ(u.values(), expected_u) << set->name << " " << columns << " " << offset;
          }
        }
      }
    }
  }
}

TEST(Momentum, NoGradientIsAGradientOfZeros) {
  const auto kernels = make_cpu_kernels({});
  const std::vector<float> zeros(50);
  std::vector<float> m = random_values(50, 5);
  std::vector<float> m2 = m;
  std::vector<uint16_t> u(50);
  std::vector<uint16_t> u2(50);
  const std::vector<MomentumBlock> blocks{{1, 50, nullptr, 0, m.data(), 50, u.data(), 50},
                                          {1, 50, zeros.data(), 50, m2.data(), 50, u2.data(), 50}};
  kernels->momentum_pack({}, blocks);
  EXPECT_EQ(m, m2);
  EXPECT_EQ(u, u2);
  EXPECT_THROW(kernels->momentum_pack({.grad = Dtype::kF16}, blocks), InvalidArgument);
}

TEST(Apply, AgreesWithTheReferenceInEveryForm) {
  const auto kernels = make_cpu_kernels({});
  const std::vector<float> weights = random_values(500, 6);
  const std::vector<uint16_t> update = to_bf16(random_values(500, 7, 0.1f));
  for (const WeightForm form : kForms) {
    for (const Decay decay : {Decay::kPlain, Decay::kCautious}) {
      Stored stored(form, weights);
      reference::Vector expected = to_double(stored.values());
      reference::ApplyOptions expected_options{.lr = 0.02, .scale = 3, .weight_decay = 0.5};
      expected_options.decay = decay == Decay::kCautious ? reference::Decay::kCautious : reference::Decay::kPlain;
      reference::apply(expected_options, to_double(from_bf16(update)), expected);
      const Rates rates{.lr = 0.01, .weight_decay = 0.5};
      ApplyBlock block{1, 500, update.data(), 500, stored.block(), 3, 2};
      kernels->apply({.form = form, .decay = decay, .rates = &rates}, std::span(&block, 1));
      const std::vector<float> result = stored.values();
      for (size_t i = 0; i < 500; ++i) {
        ASSERT_NEAR(result[i], expected[i], stored.tolerance() * (std::abs(expected[i]) + 0.05));
      }
      if (form == WeightForm::kBf16Master) {
        EXPECT_EQ(stored.bf16, to_bf16(stored.f32));
      }
    }
  }
}

TEST(Apply, MasterMantissaAndF32HoldTheSameWeights) {
  const auto kernels = make_cpu_kernels({});
  Stored f32(WeightForm::kF32, random_values(300, 8));
  Stored master(WeightForm::kBf16Master, f32.f32);
  Stored mantissa(WeightForm::kBf16Mantissa, f32.f32);
  for (uint32_t step = 0; step < 20; ++step) {
    const std::vector<uint16_t> update = to_bf16(random_values(300, step));
    for (Stored* stored : {&f32, &master, &mantissa}) {
      const Rates rates{.lr = 1e-4, .weight_decay = 0.1};
      const ApplyBlock block{1, 300, update.data(), 300, stored->block()};
      kernels->apply({.form = stored->form, .decay = Decay::kCautious, .rates = &rates}, std::span(&block, 1));
    }
  }
  EXPECT_EQ(master.f32, f32.f32);
  EXPECT_EQ(mantissa.values(), f32.f32);
}

// Loading a model after its masters were made changes the weights and not the masters.
TEST(Apply, AWeightThatIsNotItsMastersRoundingCounts) {
  const auto kernels = make_cpu_kernels({});
  Stored master(WeightForm::kBf16Master, random_values(300, 8));
  Stored expected = master;
  const std::vector<uint16_t> set = to_bf16(random_values(300, 9));
  for (size_t i = 0; i < set.size(); i += 3) {
    master.bf16[i] = set[i];
    expected.f32[i] = from_bf16(set)[i];
    expected.bf16[i] = set[i];
  }
  const std::vector<uint16_t> update = to_bf16(random_values(300, 10));
  const Rates rates{.lr = 1e-4, .weight_decay = 0.1};
  for (Stored* stored : {&master, &expected}) {
    const ApplyBlock block{1, 300, update.data(), 300, stored->block()};
    kernels->apply({.form = stored->form, .rates = &rates}, std::span(&block, 1));
  }
  EXPECT_EQ(master.f32, expected.f32);
  EXPECT_EQ(master.bf16, expected.bf16);
}

// A tiny weight and a tiny update of opposite signs: their product underflows to a zero that looks like agreement.
TEST(Apply, CautiousDecayLooksAtSignsNotAtAProduct) {
  const auto kernels = make_cpu_kernels({});
  float weight = 1e-30f;
  const float update = -1e-30f;
  const Rates rates{.lr = 0.0625, .weight_decay = 8};
  const ApplyBlock block{1, 1, &update, 1, {.data = &weight}};
  kernels->apply({.wire = Dtype::kF32, .decay = Decay::kCautious, .rates = &rates}, std::span(&block, 1));
  EXPECT_EQ(weight, 1e-30f + 0.0625f * 1e-30f);
}

TEST(Apply, EveryPathGivesTheSameBits) {
  for (const int64_t columns : kLengths) {
    const int64_t rows = columns > 1000 ? 2 : 5;
    const int64_t stride = columns + 5;
    const std::vector<float> weights = random_values(rows * stride, 9);
    const std::vector<float> updates = random_values(rows * stride, 10);
    for (const WeightForm form : kForms) {
      for (const Decay decay : {Decay::kPlain, Decay::kCautious}) {
        const Rates rates{.lr = 0.01, .weight_decay = 0.1};
        const ApplyOptions options{.form = form, .decay = decay, .rounding = {.seed = 1, .step = 2}, .rates = &rates};
        std::vector<Stored> expected;
        for (const cpu::Elementwise* set : all_elementwise()) {
          for (const int threads : {1, 3}) {
            Buffer u(Dtype::kBf16, updates, threads == 1 ? 0 : 1);
            Stored stored(form, weights);
            ApplyBlock block{rows, columns, u.data(), stride, stored.block()};
            block.weight.stride = stride;
            block.weight.first_index = int64_t{1} << 33;
            block.weight.row_index_stride = 1000000;
            cpu::make_kernels({.threads = threads}, *set)->apply(options, std::span(&block, 1));
            if (expected.empty()) expected.push_back(stored);
            ASSERT_TRUE(stored == expected[0]) << set->name << " " << columns << " form " << static_cast<int>(form);
          }
        }
        // Cut into columns, as in another layout.
        Buffer u(Dtype::kBf16, updates);
        Stored stored(form, weights);
        std::vector<ApplyBlock> blocks;
        for (int64_t begin = 0, width = 1; begin < columns; begin += width, width = 2 * width + 1) {
          width = std::min(width, columns - begin);
          ApplyBlock block{rows, width, static_cast<uint16_t*>(u.data()) + begin, stride, stored.block()};
          block.weight.data = static_cast<char*>(block.weight.data) + begin * (form == WeightForm::kF32 ? 4 : 2);
          if (block.weight.extra != nullptr) {
            block.weight.extra =
                static_cast<char*>(block.weight.extra) + begin * (form == WeightForm::kBf16Master ? 4 : 2);
          }
          block.weight.stride = stride;
          block.weight.first_index = (int64_t{1} << 33) + begin;
          block.weight.row_index_stride = 1000000;
          blocks.push_back(block);
        }
        make_cpu_kernels({.threads = 2})->apply(options, blocks);
        ASSERT_TRUE(stored == expected[0]) << columns << " form " << static_cast<int>(form);
      }
    }
  }
}

// Blocks that begin within a row of the parameter, and rows of the parameter that end within a row of the block.
TEST(Apply, MultipliesEachRowOfTheParameterByItsFactor) {
  constexpr int64_t kRows = 40;
  constexpr int64_t kColumns = 150;
  constexpr int64_t kFirst = 5;  // index of the first element
  const std::vector<float> weights = random_values(kRows * kColumns, 9);
  const std::vector<uint16_t> update = to_bf16(random_values(kRows * kColumns, 10));
  const std::vector<float> factors{0.5F, 1.25F, 0.3F};
  std::vector<int32_t> numbers(kFirst + kRows * kColumns);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<int32_t>(i % 4) - 1;
  for (const int64_t length : {1, 7, 32, 150, 100'000}) {
    for (const WeightForm form : {WeightForm::kF32, WeightForm::kBf16Master, WeightForm::kBf16Mantissa}) {
      for (const bool updated : {true, false}) {
        const Rates rates{.lr = 0.01, .weight_decay = 0.1};
        const ApplyOptions options{.form = form, .rates = &rates};
        const auto block_of = [&](Stored& stored) {
          ApplyBlock block{kRows, kColumns, updated ? update.data() : nullptr, kColumns, stored.block()};
          block.weight.stride = kColumns;
          block.weight.first_index = kFirst;
          block.weight.row_index_stride = kColumns;
          return block;
        };
        Stored plain(form, weights);
        if (updated) {
          const ApplyBlock block = block_of(plain);
          make_cpu_kernels({})->apply(options, std::span(&block, 1));
        }
        std::vector<float> expected = plain.values();
        for (size_t i = 0; i < expected.size(); ++i) {
          const int32_t number = numbers[(i + kFirst) / static_cast<size_t>(length)];
          if (number >= 0) expected[i] *= factors[static_cast<size_t>(number)];
        }
        for (const cpu::Elementwise* set : all_elementwise()) {
          Stored stored(form, weights);
          ApplyBlock block = block_of(stored);
          block.row_factors = {factors.data(), numbers.data(), length};
          cpu::make_kernels({.threads = 3}, *set)->apply(options, std::span(&block, 1));
          ASSERT_EQ(stored.values(), expected) << set->name << " rows of " << length;
        }
      }
    }
  }
}

// Each value becomes the weight, as its form says, minus the old value: on every instruction set, in blocks that
// threads share.
TEST(SubtractFromWeights, SeesTheExactWeightOfEveryForm) {
  constexpr int64_t kRows = 300;
  constexpr int64_t kColumns = 700;
  constexpr int64_t kStride = 703;
  const std::vector<float> weights = random_values(kRows * kStride, 1);
  const std::vector<float> before = random_values(kRows * kColumns, 2);
  for (const cpu::Elementwise* set : all_elementwise()) {
    const auto kernels = cpu::make_kernels({3}, *set);
    for (const WeightForm form : {WeightForm::kF32, WeightForm::kBf16, WeightForm::kBf16Master,
                                  WeightForm::kBf16Mantissa, WeightForm::kBf16Stochastic}) {
      std::vector<float> f32 = weights;
      std::vector<uint16_t> high = to_bf16(weights);
      std::vector<uint16_t> low(weights.size());
      if (form == WeightForm::kBf16Mantissa) {
        for (size_t i = 0; i < weights.size(); ++i) {
          const auto bits = std::bit_cast<uint32_t>(weights[i]);
          high[i] = static_cast<uint16_t>(bits >> 16);
          low[i] = static_cast<uint16_t>(bits);
        }
      }
      const bool exact = form != WeightForm::kBf16 && form != WeightForm::kBf16Stochastic;
      std::vector<float> values = before;
      ChangeBlock block{kRows, kColumns, {}, values.data(), nullptr};
      block.weight.data = form == WeightForm::kF32 ? static_cast<void*>(f32.data()) : high.data();
      block.weight.extra = form == WeightForm::kBf16Master ? static_cast<void*>(f32.data()) : low.data();
      block.weight.stride = kStride;
      kernels->subtract_from_weights(form, {&block, 1});
      for (int64_t i = 0; i < kRows; ++i) {
        for (int64_t j = 0; j < kColumns; ++j) {
          const float weight = weights[static_cast<size_t>(i * kStride + j)];
          const auto at = static_cast<size_t>(i * kColumns + j);
          ASSERT_EQ(values[at], (exact ? weight : from_bf16(to_bf16(weight))) - before[at]) << i << ", " << j;
        }
      }
    }
  }
}

TEST(StochasticRounding, IsRightOnAverageAndDiffersByKey) {
  const auto kernels = make_cpu_kernels({});
  constexpr int64_t kCount = 40000;
  const float value = 1.0f + 0.25f * 0x1p-7f;  // a quarter of the way to the next bf16
  const std::vector<float> zero(kCount);
  const auto rounded = [&](Rounding rounding, uint64_t stream, float up) {
    std::vector<uint16_t> weights(kCount, to_bf16(1.0f));
    const std::vector<float> update(kCount, up);
    const Rates rates{.lr = 1};
    ApplyBlock block{1, kCount, update.data(), kCount, {.data = weights.data(), .stream = stream}, -1};
    kernels->apply({Dtype::kF32, WeightForm::kBf16Stochastic, Decay::kPlain, rounding, &rates}, std::span(&block, 1));
    return from_bf16(weights);
  };
  const std::vector<float> base = rounded({1, 1}, 0, value - 1);
  double ups = 0;
  for (float x : base) {
    ASSERT_TRUE(x == 1.0f || x == 1.0f + 0x1p-7f);
    if (x != 1.0f) ++ups;
  }
  // Five standard deviations of a binomial with p = 1/4.
  EXPECT_NEAR(ups / kCount, 0.25, 5 * std::sqrt(0.25 * 0.75 / kCount));
  EXPECT_EQ(rounded({1, 1}, 0, value - 1), base);
  EXPECT_NE(rounded({2, 1}, 0, value - 1), base);
  EXPECT_NE(rounded({1, 2}, 0, value - 1), base);
  EXPECT_NE(rounded({1, 1}, 1, value - 1), base);
  EXPECT_EQ(rounded({1, 1}, 0, 0), std::vector<float>(kCount, 1.0f));  // exact values stay
  for (float x : rounded({1, 1}, 0, std::numeric_limits<float>::infinity())) ASSERT_TRUE(std::isinf(x));
}

template <typename F>
void expect_element_steps(const F& step) {
  for (const WeightForm form : kForms) {
    for (const Decay decay : {Decay::kPlain, Decay::kCautious}) {
      for (const Dtype grad : {Dtype::kF32, Dtype::kBf16}) {
        for (const int64_t count : kLengths) step(form, decay, grad, count);
      }
    }
  }
}

reference::Decay reference_decay(Decay decay) {
  return decay == Decay::kCautious ? reference::Decay::kCautious : reference::Decay::kPlain;
}

TEST(AdamW, AgreesWithTheReferenceAndEveryPathGivesTheSameBits) {
  expect_element_steps([](WeightForm form, Decay decay, Dtype grad_dtype, int64_t count) {
    Buffer grad(grad_dtype, random_values(count, 11));
    const std::vector<float> weights = random_values(count, 12);
    std::vector<Stored> expected;
    std::vector<float> expected_second;
    for (const cpu::Elementwise* set : all_elementwise()) {
      for (const int threads : {1, 2}) {
        if (count > 1000 && threads == 1 && set != cpu::portable_elementwise()) continue;
        Stored stored(form, weights);
        std::vector<float> first = random_values(count, 13, 0.1f);
        std::vector<float> second(static_cast<size_t>(count), 0.01f);
        const Rates rates{.lr = 0.02, .weight_decay = 0.1};
        AdamWOptions options{.grad = grad_dtype, .form = form, .decay = decay, .step = 7, .grad_scale = 0.5};
        options.rates = &rates;
        ElementRange range{count, grad.data(), first.data(), second.data(), stored.block(), 0.5};
        range.weight.first_index = 5;
        cpu::make_kernels({.threads = threads}, *set)->adamw(options, std::span(&range, 1));
        if (!expected.empty()) {
          ASSERT_TRUE(stored == expected[0]) << set->name << " " << count;
          ASSERT_EQ(second, expected_second);
          continue;
        }
        expected.push_back(stored);
        expected_second = second;
        reference::AdamWOptions reference_options{.lr = 0.01, .weight_decay = 0.1, .step = 7, .grad_scale = 0.5};
        reference_options.decay = reference_decay(decay);
        reference::Vector m = to_double(random_values(count, 13, 0.1f));
        reference::Vector v(static_cast<size_t>(count), 0.01f);
        reference::Vector w = to_double(Stored(form, weights).values());
        reference::adamw(reference_options, to_double(grad.values()), m, v, w);
        const std::vector<float> result = stored.values();
        for (size_t i = 0; i < w.size(); ++i) {
          ASSERT_NEAR(result[i], w[i], stored.tolerance() * (std::abs(w[i]) + 0.05));
          ASSERT_NEAR(second[i], v[i], 1e-6 * v[i]);
        }
      }
    }
  });
}

TEST(Lion, AgreesWithTheReferenceAndEveryPathGivesTheSameBits) {
  expect_element_steps([](WeightForm form, Decay decay, Dtype grad_dtype, int64_t count) {
    Buffer grad(grad_dtype, random_values(count, 14));
    const std::vector<float> weights = random_values(count, 15);
    std::vector<Stored> expected;
    for (const cpu::Elementwise* set : all_elementwise()) {
      Stored stored(form, weights);
      std::vector<float> momentum = random_values(count, 16);
      const Rates rates{.lr = 0.02, .weight_decay = 0.1};
      const LionOptions options{.grad = grad_dtype, .form = form, .decay = decay, .rates = &rates};
      const ElementRange range{count, grad.data(), momentum.data(), nullptr, stored.block(), 0.5};
      cpu::make_kernels({.threads = 2}, *set)->lion(options, std::span(&range, 1));
      if (!expected.empty()) {
        ASSERT_TRUE(stored == expected[0]) << set->name << " " << count;
        continue;
      }
      expected.push_back(stored);
      reference::LionOptions reference_options{.lr = 0.01, .weight_decay = 0.1};
      reference_options.decay = reference_decay(decay);
      reference::Vector m = to_double(random_values(count, 16));
      reference::Vector w = to_double(Stored(form, weights).values());
      reference::lion(reference_options, to_double(grad.values()), m, w);
      const std::vector<float> result = stored.values();
      for (size_t i = 0; i < w.size(); ++i) {
        ASSERT_NEAR(result[i], w[i], stored.tolerance() * (std::abs(w[i]) + 0.05));
        ASSERT_NEAR(momentum[i], m[i], 1e-6);
      }
    }
  });
}

// The sign of NaN was taken as 0: after one NaN gradient a weight never moved again, and nothing showed it.
TEST(Lion, ANanGradientReachesTheWeight) {
  constexpr int64_t kCount = 37;  // whole vectors, and a tail
  for (const cpu::Elementwise* set : all_elementwise()) {
    std::vector<float> values = random_values(kCount, 14);
    values[3] = values[36] = std::numeric_limits<float>::quiet_NaN();
    Buffer grad(Dtype::kF32, values);
    Stored stored(WeightForm::kF32, random_values(kCount, 15));
    std::vector<float> momentum(kCount);
    const Rates rates{.lr = 0.02};
    const ElementRange range{kCount, grad.data(), momentum.data(), nullptr, stored.block(), 1};
    cpu::make_kernels({.threads = 1}, *set)->lion({.grad = Dtype::kF32, .rates = &rates}, std::span(&range, 1));
    const std::vector<float> result = stored.values();
    for (size_t i = 0; i < result.size(); ++i) EXPECT_EQ(std::isnan(result[i]), i == 3 || i == 36) << set->name << i;
  }
}

}  // namespace
}  // namespace muster::kernels
