// The device gives the bits of the CPU.
#include "kernels/cuda/elementwise.h"

#include <bit>
#include <cstring>
#include <random>

#include <gtest/gtest.h>

#include "device_memory.h"

namespace muster::kernels::cuda {
namespace {

using Bytes = std::vector<std::byte>;

// Values of either dtype, a few of them special.
Bytes random_bytes(Dtype dtype, size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 1);
  Bytes out(count * static_cast<size_t>(byte_size(dtype)));
  for (size_t i = 0; i < count; ++i) {
    const float value = i % 97 == 3 ? 0.0F : i % 89 == 5 ? 1e-30F : normal(random);
    const auto bits = std::bit_cast<uint32_t>(value);
    const auto half = static_cast<uint16_t>(bits >> 16);
    if (dtype == Dtype::kF32) {
      std::memcpy(out.data() + i * 4, &bits, 4);
    } else {
      std::memcpy(out.data() + i * 2, &half, 2);
    }
  }
  return out;
}

// The same bytes here and on the device.
struct Twin {
  explicit Twin(Bytes bytes) : host(std::move(bytes)), device(host) {}
  Twin(Dtype dtype, size_t count, unsigned seed) : Twin(random_bytes(dtype, count, seed)) {}
  bool same() const { return device.values() == host; }
  Bytes host;
  DeviceVector<std::byte> device;
};

constexpr WeightForm kForms[] = {WeightForm::kF32, WeightForm::kBf16, WeightForm::kBf16Master,
                                 WeightForm::kBf16Mantissa, WeightForm::kBf16Stochastic};
Dtype weight_dtype(WeightForm form) { return form == WeightForm::kF32 ? Dtype::kF32 : Dtype::kBf16; }
Dtype extra_dtype(WeightForm form) { return form == WeightForm::kBf16Master ? Dtype::kF32 : Dtype::kBf16; }

// Around chunks of 4096 and blocks of 256, dense and not.
struct Extent {
  int64_t rows;
  int64_t columns;
  int64_t stride;
};
constexpr Extent kExtents[] = {{1, 1, 1}, {3, 300, 300}, {5, 257, 300}, {1, 4097, 4097}, {7, 5000, 5003}, {0, 5, 5}};

class Elementwise : public DeviceTest {
 protected:
  std::unique_ptr<Kernels> cpu_ = make_cpu_kernels({1});
};

TEST_F(Elementwise, MomentumHasTheBitsOfTheCpu) {
  Table table(1 << 16);  // comes round
  for (const Dtype grad : {Dtype::kF32, Dtype::kBf16}) {
    for (const Dtype momentum : {Dtype::kF32, Dtype::kBf16}) {
      for (const Dtype wire : {Dtype::kF32, Dtype::kBf16}) {
        for (int variant = 0; variant < 4; ++variant) {
          const MomentumOptions options{grad,
                                        momentum,
                                        wire,
                                        variant % 2 == 0 ? MomentumForm::kEma : MomentumForm::kSum,
                                        variant < 2,
                                        0.95,
                                        variant == 1 ? 0.3 : 1};
          std::vector<std::unique_ptr<Twin>> twins;
          std::vector<MomentumBlock> here;
          std::vector<MomentumBlock> there;
          for (const Extent& e : kExtents) {
            const auto count = static_cast<size_t>(e.rows * e.stride) + 1;
            Twin& g = *twins.emplace_back(std::make_unique<Twin>(grad, count, 1));
            Twin& m = *twins.emplace_back(std::make_unique<Twin>(momentum, count, 2));
            Twin& u = *twins.emplace_back(std::make_unique<Twin>(wire, count, 3));
            const bool absent = e.rows == 5;
            here.push_back({e.rows, e.columns, absent ? nullptr : g.host.data(), e.stride, m.host.data(), e.stride,
                            u.host.data(), e.stride});
            there.push_back({e.rows, e.columns, absent ? nullptr : g.device.data(), e.stride, m.device.data(), e.stride,
                             u.device.data(), e.stride});
          }
          cpu_->momentum_pack(options, here);
          momentum_pack(options, there, table, nullptr);
          check(cudaDeviceSynchronize(), "momentum");
          for (const auto& twin : twins) ASSERT_TRUE(twin->same());
        }
      }
    }
  }
}

TEST_F(Elementwise, ApplyHasTheBitsOfTheCpu) {
  Table table;
  for (const WeightForm form : kForms) {
    for (const Dtype wire : {Dtype::kF32, Dtype::kBf16}) {
      for (const Decay decay : {Decay::kPlain, Decay::kCautious}) {
        const ApplyOptions options{wire, form, decay, {7, 3}};
        std::vector<std::unique_ptr<Twin>> twins;
        std::vector<ApplyBlock> here;
        std::vector<ApplyBlock> there;
        for (const Extent& e : kExtents) {
          const auto count = static_cast<size_t>(e.rows * e.stride) + 1;
          Twin& u = *twins.emplace_back(std::make_unique<Twin>(wire, count, 4));
          Twin& w = *twins.emplace_back(std::make_unique<Twin>(weight_dtype(form), count, 5));
          Twin& x = *twins.emplace_back(std::make_unique<Twin>(extra_dtype(form), count, 6));
          here.push_back({e.rows,
                          e.columns,
                          u.host.data(),
                          e.stride,
                          {w.host.data(), x.host.data(), e.stride, 11, 100, e.stride},
                          0.02,
                          0.001});
          there.push_back({e.rows,
                           e.columns,
                           u.device.data(),
                           e.stride,
                           {w.device.data(), x.device.data(), e.stride, 11, 100, e.stride},
                           0.02,
                           0.001});
        }
        cpu_->apply(options, here);
        apply(options, there, table, nullptr);
        check(cudaDeviceSynchronize(), "apply");
        for (const auto& twin : twins) ASSERT_TRUE(twin->same());
      }
    }
  }
}

TEST_F(Elementwise, AdamWAndLionHaveTheBitsOfTheCpu) {
  Table table;
  for (const WeightForm form : kForms) {
    for (const Dtype grad : {Dtype::kF32, Dtype::kBf16}) {
      for (const Decay decay : {Decay::kPlain, Decay::kCautious}) {
        for (const bool is_lion : {false, true}) {
          std::vector<std::unique_ptr<Twin>> twins;
          std::vector<ElementRange> here;
          std::vector<ElementRange> there;
          for (const int64_t count : {int64_t{1}, int64_t{300}, int64_t{4097}, int64_t{0}}) {
            const auto n = static_cast<size_t>(count) + 1;
            Twin& g = *twins.emplace_back(std::make_unique<Twin>(grad, n, 7));
            Twin& first = *twins.emplace_back(std::make_unique<Twin>(Dtype::kF32, n, 8));
            Twin& second = *twins.emplace_back(std::make_unique<Twin>(Bytes(n * 4)));
            Twin& w = *twins.emplace_back(std::make_unique<Twin>(weight_dtype(form), n, 9));
            Twin& x = *twins.emplace_back(std::make_unique<Twin>(extra_dtype(form), n, 10));
            const auto floats = [](std::byte* bytes) { return reinterpret_cast<float*>(bytes); };
            here.push_back({count,
                            g.host.data(),
                            floats(first.host.data()),
                            floats(second.host.data()),
                            {w.host.data(), x.host.data(), 0, 11, 100, 0},
                            0.02,
                            0.001});
            there.push_back({count,
                             g.device.data(),
                             floats(first.device.data()),
                             floats(second.device.data()),
                             {w.device.data(), x.device.data(), 0, 11, 100, 0},
                             0.02,
                             0.001});
          }
          if (is_lion) {
            const LionOptions options{grad, form, decay, {7, 3}, 0.9, 0.99, 0.5};
            cpu_->lion(options, here);
            lion(options, there, table, nullptr);
          } else {
            const AdamWOptions options{grad, form, decay, {7, 3}, 0.9, 0.95, 1e-8, 5, 0.5};
            cpu_->adamw(options, here);
            adamw(options, there, table, nullptr);
          }
          check(cudaDeviceSynchronize(), "elements");
          for (const auto& twin : twins) ASSERT_TRUE(twin->same());
        }
      }
    }
  }
}

}  // namespace
}  // namespace muster::kernels::cuda
