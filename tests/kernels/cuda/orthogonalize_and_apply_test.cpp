// orthogonalize_and_apply gives weights the same bits as orthogonalize and then apply.
#include <array>
#include <memory>
#include <optional>

#include <gtest/gtest.h>

#include "kernels/async_device.h"
#include "kernels/cuda/newton_schulz/apply_orthogonalized.h"
#include "orthogonalizing.h"
#include "twin.h"

namespace muster::kernels::cuda {
namespace {

constexpr WeightForm kForms[] = {WeightForm::kF32, WeightForm::kBf16, WeightForm::kBf16Master,
                                 WeightForm::kBf16Mantissa, WeightForm::kBf16Stochastic};
constexpr Dtype kDtypes[] = {Dtype::kF32, Dtype::kBf16};
constexpr std::optional<LineAxis> kAxes[] = {std::nullopt, LineAxis::kRows, LineAxis::kColumns};
Dtype weight_dtype(WeightForm form) { return form == WeightForm::kF32 ? Dtype::kF32 : Dtype::kBf16; }
Dtype extra_dtype(WeightForm form) { return form == WeightForm::kBf16Master ? Dtype::kF32 : Dtype::kBf16; }

// Square, tall, wide and odd; rows longer than a chunk, and many rows per chunk.
constexpr MatrixShape kShapes[] = {{128, 128}, {96, 384}, {384, 96}, {33, 257}, {70, 61}, {1, 40}, {16, 9004}};

// How blocks lie in a matrix and its weights: the matrix; as one row; with weights further apart, aligned or not; in
// parts of rows and columns; in pieces of one row each that end anywhere.
enum class Cut : uint8_t { kWhole, kFlat, kApart, kOddlyApart, kParts, kPieces };
constexpr Cut kCuts[] = {Cut::kWhole, Cut::kFlat, Cut::kApart, Cut::kOddlyApart, Cut::kParts, Cut::kPieces};

int64_t stride_of(Cut cut, MatrixShape shape) {
  return shape.columns + (cut == Cut::kApart ? 8 : cut == Cut::kOddlyApart ? 5 : 0);
}

// A block from element (row, column) of a matrix on.
struct Part {
  int64_t row;
  int64_t column;
  int64_t rows;
  int64_t columns;
};

std::vector<Part> parts_of(Cut cut, MatrixShape shape) {
  const auto [rows, columns] = shape;
  const int64_t elements = rows * columns;
  if (cut == Cut::kFlat) return {{0, 0, 1, elements}};
  if (cut == Cut::kParts) {
    const int64_t down = rows / 3;
    const int64_t across = columns / 2;
    return {{0, 0, down, columns}, {down, across, rows - down, columns - across}, {down, 0, rows - down, across}};
  }
  if (cut == Cut::kPieces) {
    const int64_t first = elements / 3 + 1;
    const int64_t second = first + columns / 2;
    const auto piece = [&](int64_t begin, int64_t end) -> Part {
      return {begin / columns, begin % columns, 1, end - begin};
    };
    return {piece(0, first), piece(first, second), piece(second, elements)};
  }
  return {{0, 0, rows, columns}};
}

struct Case {
  MatrixShape shape;
  OrthogonalizeOptions orthogonalize;
  ApplyOptions apply;
  Cut cut = Cut::kWhole;
  bool cramped = false;  // no more scratch than one matrix needs
};

constexpr size_t kCount = 3;

// Matrices and weights that go through steps, with one call or with two.
class Steps {
 public:
  Steps(Kernels& kernels, const Case& c)
      : kernels_(kernels),
        case_(c),
        stride_(stride_of(c.cut, c.shape)),
        size_(static_cast<size_t>(c.shape.rows * stride_)),
        batch_(c.orthogonalize.wire, orthogonalizing_place(c), std::vector<Values>(kCount, random_matrix(c.shape, 0))),
        variances_(Values(kCount * lines())),
        active_(std::vector<int32_t>(kCount, 1)),
        data_(random_bytes(weight_dtype(c.apply.form), kCount * size_, 1)),
        extra_(random_bytes(extra_dtype(c.apply.form), kCount * size_, 2)),
        bytes_(kernels.orthogonalize_workspace(c.shape, c.cramped ? 1 : kCount, c.orthogonalize)),
        workspace_(static_cast<size_t>(bytes_)) {
    for (size_t m = 0; m < kCount; ++m) {
      matrices_.push_back({batch_.at(m), variances_.data() + m * lines(), active_.data() + m});
      for (const Part& part : parts_of(c.cut, c.shape)) add(m, part);
    }
  }

  void set_active(const std::vector<int32_t>& active) {
    check(cudaMemcpy(active_.data(), active.data(), active.size() * 4, cudaMemcpyHostToDevice), "write");
  }

  void run(unsigned seed, bool joined, bool recorded) {
    std::vector<Values> inputs;
    for (unsigned m = 0; m < kCount; ++m) inputs.push_back(random_matrix(case_.shape, 100 * seed + m));
    batch_.write(inputs);
    const Rates rates{0.02 / seed, 0.05, 0.95};
    check(cudaMemcpy(rates_.data(), &rates, sizeof rates, cudaMemcpyHostToDevice), "write");
    case_.apply.rates = rates_.data();
    case_.apply.rounding.step = seed;
    settle();
    do {
      if (recorded) kernels_.async_device()->begin_step(true);
      if (joined) {
        kernels_.orthogonalize_and_apply(batch(), case_.apply, blocks_);
      } else {
        kernels_.orthogonalize(batch());
        kernels_.apply(case_.apply, blocks_);
      }
    } while (recorded && !kernels_.async_device()->end_step());
    settle();
  }

  bool takes_one_call() const { return cuda::matrix_blocks(batch(), case_.apply, blocks_).has_value(); }
  void make_it_impossible() { blocks_[0].update_stride += 1; }

  Bytes data() const { return data_.values(); }
  Bytes extra() const { return extra_.values(); }
  Values variances() const { return variances_.values(); }

 private:
  OrthogonalizeBatch batch() const {
    return {case_.orthogonalize, case_.shape, matrices_, {workspace_.data(), bytes_}};
  }

  // Where matrices are X themselves, and where they are not.
  static cuda::Place orthogonalizing_place(const Case& c) { return c.cramped ? cuda::Place::kOdd : cuda::Place::kEven; }

  size_t lines() const {
    if (!case_.orthogonalize.normuon.has_value()) return 0;
    return static_cast<size_t>(case_.orthogonalize.normuon->axis == LineAxis::kRows ? case_.shape.rows
                                                                                    : case_.shape.columns);
  }

  void add(size_t m, const Part& part) {
    const int64_t columns = case_.shape.columns;
    const auto first = m * size_ + static_cast<size_t>(part.row * stride_ + part.column);
    const auto in_matrix = static_cast<size_t>(part.row * columns + part.column);
    ApplyBlock& block = blocks_.emplace_back();
    block.rows = part.rows;
    block.columns = part.columns;
    block.update = static_cast<std::byte*>(batch_.at(m)) + in_matrix * width_of(case_.orthogonalize.wire);
    block.update_stride = part.rows == 1 ? part.columns : columns;
    block.weight = {data_.data() + first * element_bytes(weight_dtype(case_.apply.form)),
                    extra_.data() + first * element_bytes(extra_dtype(case_.apply.form)),
                    part.rows == 1 ? part.columns : stride_,
                    m,
                    1000 + static_cast<int64_t>(in_matrix),
                    part.rows == 1 ? part.columns : columns};
    block.scale = 1.5;
    block.multiplier = 0.7;
    block.active = active_.data() + m;
  }

  Kernels& kernels_;
  Case case_;
  int64_t stride_;
  size_t size_;  // of a matrix of weights
  OnDevice batch_;
  DeviceVector<float> variances_;
  DeviceVector<int32_t> active_;
  DeviceVector<Rates> rates_{1};
  DeviceVector<std::byte> data_;
  DeviceVector<std::byte> extra_;
  int64_t bytes_;
  DeviceVector<std::byte> workspace_;
  std::vector<UpdateMatrix> matrices_;
  std::vector<ApplyBlock> blocks_;
};

Case case_of(MatrixShape shape, Dtype wire, std::optional<LineAxis> axis, WeightForm form) {
  Case c;
  c.shape = shape;
  c.orthogonalize.coefficients = one_iteration();
  c.orthogonalize.wire = wire;
  if (axis.has_value()) c.orthogonalize.normuon = NorMuonOptions{*axis, 0.9, 1e-8};
  c.apply = {wire, form, Decay::kCautious, {7, 3}};
  return c;
}

class OrthogonalizeAndApply : public OrthogonalizeTest {
 protected:
  void SetUp() override {
    OrthogonalizeTest::SetUp();
    if (IsSkipped()) return;
    kernels_ = make_cuda_kernels({});
    others_ = make_cuda_kernels({});
  }

  // One call against two.
  void expect_the_same(const Case& c, unsigned steps, bool recorded, bool possible = true) {
    SCOPED_TRACE(
        testing::Message() << c.shape.rows << "x" << c.shape.columns << ", wire "
                           << static_cast<int>(c.orthogonalize.wire) << ", form " << static_cast<int>(c.apply.form)
                           << ", cut " << static_cast<int>(c.cut) << ", axis "
                           << (c.orthogonalize.normuon ? static_cast<int>(c.orthogonalize.normuon->axis) : -1));
    Steps one(*kernels_, c);
    Steps two(*others_, c);
    if (!possible) {
      one.make_it_impossible();
      two.make_it_impossible();
    }
    ASSERT_EQ(one.takes_one_call(), possible);
    Bytes before = one.data();
    for (unsigned step = 1; step <= steps; ++step) {
      for (Steps* side : {&one, &two}) {
        if (step == 2) side->set_active({1, 0, 1});
        if (step == 3) side->set_active({1, 1, 1});
      }
      one.run(step, true, recorded);
      two.run(step, false, false);
      EXPECT_NE(one.data(), before);
      before = one.data();
      ASSERT_EQ(one.data(), two.data());
      ASSERT_EQ(one.extra(), two.extra());
      ASSERT_EQ(one.variances(), two.variances());
    }
  }

  std::unique_ptr<Kernels> kernels_;
  std::unique_ptr<Kernels> others_;  // not recorded
};

class OrthogonalizeAndApplyAs : public OrthogonalizeAndApply, public testing::WithParamInterface<MatrixShape> {};

TEST_P(OrthogonalizeAndApplyAs, HasTheBitsOfBothForAllBlocks) {
  for (const Dtype wire : kDtypes) {
    for (const std::optional<LineAxis> axis : kAxes) {
      Case c = case_of(GetParam(), wire, axis, WeightForm::kF32);
      for (const Cut cut : kCuts) {
        c.cut = cut;
        c.cramped = !c.cramped;
        expect_the_same(c, 2, false);
      }
    }
  }
}

TEST_P(OrthogonalizeAndApplyAs, HasTheBitsOfBothForAllWeights) {
  for (const WeightForm form : kForms) {
    for (const std::optional<LineAxis> axis : kAxes) {
      Case c = case_of(GetParam(), Dtype::kBf16, axis, form);
      c.apply.decay = axis.has_value() ? Decay::kPlain : Decay::kCautious;
      for (const Cut cut : {Cut::kFlat, Cut::kApart, Cut::kPieces}) {
        c.cut = cut;
        expect_the_same(c, 2, false);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, OrthogonalizeAndApplyAs, testing::ValuesIn(kShapes), shape_name);

TEST_F(OrthogonalizeAndApply, CanBeRecorded) {
  for (const MatrixShape shape : {MatrixShape{128, 128}, MatrixShape{96, 384}}) {
    for (const bool cramped : {false, true}) {
      Case c = case_of(shape, Dtype::kBf16, LineAxis::kRows, WeightForm::kBf16Stochastic);
      c.cramped = cramped;
      expect_the_same(c, 5, true);
    }
  }
}

TEST_F(OrthogonalizeAndApply, LeavesInactiveWeightsAndVariancesAlone) {
  Steps steps(*kernels_, case_of({96, 384}, Dtype::kBf16, LineAxis::kColumns, WeightForm::kBf16Master));
  const Bytes data = steps.data();
  const Bytes extra = steps.extra();
  const Values variances = steps.variances();
  steps.set_active({0, 0, 0});
  steps.run(1, true, false);
  EXPECT_EQ(steps.data(), data);
  EXPECT_EQ(steps.extra(), extra);
  EXPECT_EQ(steps.variances(), variances);
}

// Rows of an update that are not rows of the matrix.
TEST_F(OrthogonalizeAndApply, FallsBackToBoth) {
  Case c = case_of({96, 384}, Dtype::kBf16, LineAxis::kRows, WeightForm::kF32);
  c.cut = Cut::kParts;
  expect_the_same(c, 2, false, false);
}

// None of these needs a device.
TEST(MatrixBlocks, CutsOneRowWhereRowsOfTheMatrixEnd) {
  const MatrixShape shape{4, 10};
  std::array<std::array<uint16_t, 40>, 2> memory{};
  std::array<float, 80> weights{};
  const std::array<UpdateMatrix, 2> batch{{{memory[1].data()}, {memory[0].data()}}};
  ApplyBlock block;
  block.rows = 1;
  block.columns = 29;
  block.update = memory[0].data() + 7;
  block.update_stride = 29;
  block.weight.data = weights.data();
  block.weight.first_index = 5;
  const auto found = matrix_blocks({.shape = shape, .matrices = batch}, {}, std::span(&block, 1));
  ASSERT_TRUE(found.has_value());
  ASSERT_EQ(found->size(), 3);
  const int64_t expected[3][5] = {{0, 7, 1, 3, 0}, {1, 0, 2, 10, 3}, {3, 0, 1, 6, 23}};
  for (size_t i = 0; i < 3; ++i) {
    const MatrixBlock& piece = (*found)[i];
    EXPECT_EQ(piece.matrix, 1);
    EXPECT_EQ(piece.row, expected[i][0]);
    EXPECT_EQ(piece.column, expected[i][1]);
    EXPECT_EQ(piece.block.rows, expected[i][2]);
    EXPECT_EQ(piece.block.columns, expected[i][3]);
    EXPECT_EQ(piece.block.weight.data, weights.data() + expected[i][4]);
    EXPECT_EQ(piece.block.weight.extra, nullptr);
    EXPECT_EQ(piece.block.weight.first_index, 5 + expected[i][4]);
    EXPECT_EQ(piece.block.weight.stride, 10);
    EXPECT_EQ(piece.block.weight.row_index_stride, 10);
  }
}

TEST(MatrixBlocks, RefusesWhatIsElsewhere) {
  const MatrixShape shape{4, 10};
  std::array<uint16_t, 80> memory{};
  const std::array<UpdateMatrix, 1> batch{{{memory.data() + 20}}};
  const auto possible = [&](int64_t first, int64_t rows, int64_t columns, int64_t stride) {
    ApplyBlock block;
    block.rows = rows;
    block.columns = columns;
    block.update = memory.data() + first;
    block.update_stride = stride;
    return matrix_blocks({.shape = shape, .matrices = batch}, {}, std::span(&block, 1)).has_value();
  };
  EXPECT_TRUE(possible(20, 4, 10, 10));
  EXPECT_TRUE(possible(25, 4, 5, 10));
  EXPECT_TRUE(possible(0, 0, 10, 10));
  EXPECT_FALSE(possible(19, 1, 10, 10));
  EXPECT_FALSE(possible(25, 4, 6, 10));
  EXPECT_FALSE(possible(20, 2, 5, 20));
  EXPECT_FALSE(possible(55, 1, 6, 6));
}

}  // namespace
}  // namespace muster::kernels::cuda
