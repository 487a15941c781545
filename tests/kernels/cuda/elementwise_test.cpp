// The device gives the bits of the CPU.
#include "kernels/cuda/elementwise/elementwise.h"

#include <gtest/gtest.h>

#include "kernels/kernels.h"
#include "twin.h"

namespace muster::kernels::cuda {
namespace {

constexpr WeightForm kForms[] = {WeightForm::kF32, WeightForm::kBf16, WeightForm::kBf16Master,
                                 WeightForm::kBf16Mantissa, WeightForm::kBf16Stochastic};
constexpr Dtype kDtypes[] = {Dtype::kF32, Dtype::kBf16};
Dtype weight_dtype(WeightForm form) { return form == WeightForm::kF32 ? Dtype::kF32 : Dtype::kBf16; }
Dtype extra_dtype(WeightForm form) { return form == WeightForm::kBf16Master ? Dtype::kF32 : Dtype::kBf16; }

// A number on the host and on the device.
template <typename T>
struct Number {
  explicit Number(T value) : here(value), device(std::vector<T>{value}) {}
  const T* there() const { return device.data(); }
  T here;
  DeviceVector<T> device;
};

// Each block gets one of these in turn.
struct Flags {
  Number<int32_t> yes{1};
  Number<int32_t> no{0};
  template <typename Block>
  void set(size_t i, Block& here, Block& there) const {
    if (i % 4 == 1) {
      here.active = &yes.here;
      there.active = yes.there();
    } else if (i % 4 == 3) {
      here.active = &no.here;
      there.active = no.there();
    }
  }
};

// Row factors for every second block, over rows of 7 elements or of many.
struct Factors {
  static constexpr size_t kRows = 400'000;
  static std::vector<int32_t> numbers() {
    std::vector<int32_t> out(kRows);
    for (size_t i = 0; i < kRows; ++i) out[i] = static_cast<int32_t>(i % 5) - 1;
    return out;
  }
  std::vector<float> here{0.5F, 0.3F, 1.25F, 0.9F};
  std::vector<int32_t> number_here = numbers();
  DeviceVector<float> there{here};
  DeviceVector<int32_t> number_there{number_here};
  template <typename Block>
  void set(size_t i, Block& a, Block& b) const {
    if (i % 2 == 0) return;
    const int64_t length = i % 4 == 1 ? 7 : 1000;
    a.row_factors = {here.data(), number_here.data(), length};
    b.row_factors = {there.data(), number_there.data(), length};
  }
};

class Elementwise : public QueueTest {
 protected:
  void SetUp() override {
    QueueTest::SetUp();
    if (IsSkipped()) return;
    flags_ = std::make_unique<Flags>();
    factors_ = std::make_unique<Factors>();
  }

  void momentum_on_both(MomentumOptions options) {
    Twins twins;
    std::vector<MomentumBlock> here;
    std::vector<MomentumBlock> there;
    for (const Extent& e : kExtents) {
      const auto first = static_cast<size_t>(e.first);
      Twin& g = twins.add(options.grad, e.elements(), 1);
      Twin& m = twins.add(options.momentum, e.elements(), 2);
      Twin& u = twins.add(options.wire, e.elements(), 3);
      MomentumBlock& a = here.emplace_back();
      a = {e.rows,
           e.columns,
           g.here(first * element_bytes(options.grad)),
           e.stride,
           m.here(first * element_bytes(options.momentum)),
           e.stride,
           u.here(first * element_bytes(options.wire)),
           e.stride};
      MomentumBlock& b = there.emplace_back(a);
      b.grad = g.there(first * element_bytes(options.grad));
      b.momentum = m.there(first * element_bytes(options.momentum));
      b.update = u.there(first * element_bytes(options.wire));
      if (e.rows == 5 || e.rows == 500) a.grad = b.grad = nullptr;
      flags_->set(here.size(), a, b);
    }
    const Number<double> clip(0.37);
    const Number<Rates> rates({.momentum = 0.93});
    if (options.nesterov) options.clip = &clip.here;
    options.rates = &rates.here;
    cpu_->momentum_pack(options, here);
    if (options.nesterov) options.clip = clip.there();
    options.rates = rates.there();
    momentum_pack(options, there, queue());
    queue().synchronize();
    ASSERT_EQ(twins.differing(), -1);
  }

  void apply_on_both(ApplyOptions options) {
    Twins twins;
    std::vector<ApplyBlock> here;
    std::vector<ApplyBlock> there;
    for (const Extent& e : kExtents) {
      const auto first = static_cast<size_t>(e.first);
      Twin& u = twins.add(options.wire, e.elements(), 4);
      Twin& w = twins.add(weight_dtype(options.form), e.elements(), 5);
      Twin& x = twins.add(extra_dtype(options.form), e.elements(), 6);
      ApplyBlock& a = here.emplace_back();
      a.rows = e.rows;
      a.columns = e.columns;
      a.update = u.here(first * element_bytes(options.wire));
      a.update_stride = e.stride;
      a.weight = {w.here(first * element_bytes(weight_dtype(options.form))),
                  x.here(first * element_bytes(extra_dtype(options.form))),
                  e.stride,
                  11,
                  100,
                  e.rows == 3 ? e.stride + 7 : e.stride};
      a.scale = 1.7;
      a.multiplier = 0.3;
      ApplyBlock& b = there.emplace_back(a);
      b.update = u.there(first * element_bytes(options.wire));
      b.weight.data = w.there(first * element_bytes(weight_dtype(options.form)));
      b.weight.extra = x.there(first * element_bytes(extra_dtype(options.form)));
      flags_->set(here.size(), a, b);
      factors_->set(here.size() / 2, a, b);
      if (here.size() % 3 == 0) a.update = b.update = nullptr;
    }
    const Number<Rates> rates({.lr = 0.017, .weight_decay = 0.13});
    options.rates = &rates.here;
    cpu_->apply(options, here);
    options.rates = rates.there();
    apply(options, there, queue());
    queue().synchronize();
    ASSERT_EQ(twins.differing(), -1);
  }

  void subtract_on_both(WeightForm form) {
    Twins twins;
    std::vector<ChangeBlock> here;
    std::vector<ChangeBlock> there;
    for (const Extent& e : kExtents) {
      const auto first = static_cast<size_t>(e.first);
      Twin& values = twins.add(Dtype::kF32, e.elements(), 4);
      Twin& w = twins.add(weight_dtype(form), e.elements(), 5);
      Twin& x = twins.add(extra_dtype(form), e.elements(), 6);
      const auto floats = [&](std::byte* bytes) { return reinterpret_cast<float*>(bytes) + first; };
      ChangeBlock& a = here.emplace_back();
      a.rows = e.rows;
      a.columns = e.columns;
      a.weight.data = w.here(first * element_bytes(weight_dtype(form)));
      a.weight.extra = x.here(first * element_bytes(extra_dtype(form)));
      a.weight.stride = e.stride;
      a.values = floats(values.here());
      ChangeBlock& b = there.emplace_back(a);
      b.weight.data = w.there(first * element_bytes(weight_dtype(form)));
      b.weight.extra = x.there(first * element_bytes(extra_dtype(form)));
      b.values = floats(values.there());
      flags_->set(here.size(), a, b);
    }
    cpu_->subtract_from_weights(form, here);
    subtract_from_weights(form, there, queue());
    queue().synchronize();
    ASSERT_EQ(twins.differing(), -1);
  }

  // Lion or AdamW, with the options of either.
  template <typename Options>
  void ranges_on_both(Options options, void (Kernels::*on_host)(const Options&, std::span<const ElementRange>),
                      void (*on_device)(const Options&, std::span<const ElementRange>, LaunchQueue&)) {
    Twins twins;
    const Number<int64_t> updates(41);
    std::vector<ElementRange> here;
    std::vector<ElementRange> there;
    for (const int64_t count : {1, 300, 4097, 0, 4096, 20000, 9, 4098}) {
      const size_t first = count == 20000 ? 1 : 0;
      const size_t n = static_cast<size_t>(count) + first + 1;
      Twin& g = twins.add(options.grad, n, 7);
      Twin& mean = twins.add(Dtype::kF32, n, 8);
      Twin& squares = twins.add(Bytes(n * 4));
      Twin& w = twins.add(weight_dtype(options.form), n, 9);
      Twin& x = twins.add(extra_dtype(options.form), n, 10);
      const auto floats = [&](std::byte* bytes) { return reinterpret_cast<float*>(bytes) + first; };
      ElementRange& a = here.emplace_back();
      a.count = count;
      a.grad = g.here(first * element_bytes(options.grad));
      a.first = floats(mean.here());
      a.second = floats(squares.here());
      a.weight = {w.here(first * element_bytes(weight_dtype(options.form))),
                  x.here(first * element_bytes(extra_dtype(options.form))),
                  0,
                  11,
                  100,
                  0};
      a.multiplier = 0.3;
      ElementRange& b = there.emplace_back(a);
      b.grad = g.there(first * element_bytes(options.grad));
      b.first = floats(mean.there());
      b.second = floats(squares.there());
      b.weight.data = w.there(first * element_bytes(weight_dtype(options.form)));
      b.weight.extra = x.there(first * element_bytes(extra_dtype(options.form)));
      if (count == 4096) a.grad = b.grad = nullptr;
      if (count >= 4097) {
        a.updates = &updates.here;
        b.updates = updates.there();
      }
      flags_->set(here.size() + 1, a, b);
      factors_->set(here.size(), a, b);
    }
    const Number<double> clip(0.37);
    const Number<Rates> rates({.lr = 0.017, .weight_decay = 0.13});
    options.clip = &clip.here;
    options.rates = &rates.here;
    (cpu_.get()->*on_host)(options, here);
    options.clip = clip.there();
    options.rates = rates.there();
    on_device(options, there, queue());
    queue().synchronize();
    ASSERT_EQ(twins.differing(), -1);
  }

  std::unique_ptr<Kernels> cpu_ = make_cpu_kernels({1});

 private:
  std::unique_ptr<Flags> flags_;
  std::unique_ptr<Factors> factors_;
};

TEST_F(Elementwise, MomentumHasTheBitsOfTheCpu) {
  for (const Dtype grad : kDtypes) {
    for (const Dtype momentum : kDtypes) {
      for (const Dtype wire : kDtypes) {
        for (int variant = 0; variant < 4; ++variant) {
          MomentumOptions options;
          options.grad = grad;
          options.momentum = momentum;
          options.wire = wire;
          options.form = variant % 2 == 0 ? MomentumForm::kEma : MomentumForm::kSum;
          options.nesterov = variant < 2;
          options.grad_scale = variant == 1 ? 0.3 : 1;
          momentum_on_both(options);
        }
      }
    }
  }
}

TEST_F(Elementwise, ApplyHasTheBitsOfTheCpu) {
  for (const WeightForm form : kForms) {
    for (const Dtype wire : kDtypes) {
      for (const Decay decay : {Decay::kPlain, Decay::kCautious}) apply_on_both({wire, form, decay, {7, 3}});
    }
  }
}

TEST_F(Elementwise, SubtractingFromWeightsHasTheBitsOfTheCpu) {
  for (const WeightForm form : kForms) subtract_on_both(form);
}

TEST_F(Elementwise, AdamWAndLionHaveTheBitsOfTheCpu) {
  for (const WeightForm form : kForms) {
    for (const Dtype grad : kDtypes) {
      for (const Decay decay : {Decay::kPlain, Decay::kCautious}) {
        ranges_on_both(AdamWOptions{grad, form, decay, {7, 3}, 0.9, 0.95, 1e-8, 5, 0.5}, &Kernels::adamw, adamw);
        ranges_on_both(LionOptions{grad, form, decay, {7, 3}, 0.9, 0.99, 0.5}, &Kernels::lion, lion);
      }
    }
  }
}

// More blocks than a thread block compares at once when it searches for its own.
TEST_F(Elementwise, ManyBlocksFindTheirOwn) {
  constexpr size_t kBlocks = 1000;
  Twins twins;
  Twin& g = twins.add(Dtype::kF32, kBlocks * 10, 1);
  Twin& m = twins.add(Dtype::kF32, kBlocks * 10, 2);
  Twin& u = twins.add(Dtype::kBf16, kBlocks * 10, 3);
  std::vector<MomentumBlock> here;
  std::vector<MomentumBlock> there;
  for (size_t i = 0; i < kBlocks; ++i) {
    const auto columns = static_cast<int64_t>(i % 11);
    here.push_back({1, columns, g.here(i * 40), columns, m.here(i * 40), columns, u.here(i * 20), columns});
    there.push_back({1, columns, g.there(i * 40), columns, m.there(i * 40), columns, u.there(i * 20), columns});
  }
  cpu_->momentum_pack({}, here);
  momentum_pack({}, there, queue());
  queue().synchronize();
  EXPECT_EQ(twins.differing(), -1);
}

TEST_F(Elementwise, NothingAtAllIsFine) {
  momentum_pack({}, {}, queue());
  apply({}, {}, queue());
  adamw({}, {}, queue());
  lion({}, {}, queue());
  queue().synchronize();
}

TEST_F(Elementwise, HalfPrecisionIsRefused) {
  MomentumOptions options;
  options.grad = Dtype::kF16;
  EXPECT_THROW(momentum_pack(options, {}, queue()), InvalidArgument);
}

}  // namespace
}  // namespace muster::kernels::cuda
