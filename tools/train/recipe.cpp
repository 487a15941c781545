#include "train/recipe.h"

#include <charconv>
#include <limits>
#include <type_traits>
#include <utility>

#include <fmt/format.h>

#include "base/text.h"
#include "muster/error.h"

namespace muster::train {
namespace {

template <typename T>
T number(std::string_view text, std::string_view kind) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    throw InvalidArgument(fmt::format("{} is not {}", base::in_quotes(text), kind));
  }
  return value;
}

struct Range {
  int64_t low = 0;
  int64_t high = 0;
};

int64_t integer(std::string_view text, Range range) {
  const auto value = number<int64_t>(text, "an integer");
  if (value >= range.low && value <= range.high) return value;
  throw InvalidArgument(fmt::format("{} is not between {} and {}", base::shortened(text), range.low, range.high));
}

double rate(std::string_view text, double most) {
  const auto value = number<double>(text, "a number");
  if (value >= 0 && value <= most) return value;
  throw InvalidArgument(fmt::format("{} is not between 0 and {}", base::shortened(text), most));
}

// Names of values.
constexpr std::pair<std::string_view, bool> kSwitch[] = {{"on", true}, {"off", false}};
constexpr std::pair<std::string_view, ResidualScale> kResidualScales[] = {
    {"on", ResidualScale::kWeights}, {"after", ResidualScale::kOutput}, {"off", ResidualScale::kNone}};
constexpr std::pair<std::string_view, NormAxis> kGateAxes[] = {
    {"rows", NormAxis::kRows}, {"columns", NormAxis::kColumns}, {"longer", NormAxis::kLonger}};
constexpr std::pair<std::string_view, NormAxis> kOutputAxes[] = {{"rows", NormAxis::kRows},
                                                                 {"columns", NormAxis::kColumns}};
constexpr std::pair<std::string_view, StepScale> kStepScales[] = {{"none", StepScale::kNone},
                                                                  {"spectral", StepScale::kSpectral},
                                                                  {"jordan", StepScale::kJordan},
                                                                  {"rms", StepScale::kRms},
                                                                  {"fan", StepScale::kFan}};
constexpr std::pair<std::string_view, Schedule::Form> kSchedules[] = {
    {"linear", Schedule::Form::kLinear}, {"cooldown", Schedule::Form::kCooldown}, {"cosine", Schedule::Form::kCosine}};
constexpr std::pair<std::string_view, AttentionStorage> kStorages[] = {{"separate", AttentionStorage::kSeparate},
                                                                       {"fused", AttentionStorage::kFused},
                                                                       {"shared", AttentionStorage::kShared}};
constexpr std::pair<std::string_view, Activation> kActivations[] = {{"relu2", Activation::kRelu2},
                                                                    {"gelu", Activation::kGelu}};
constexpr std::pair<std::string_view, Algorithm> kAlgorithms[] = {
    {"normuon", Algorithm::kNorMuon}, {"muon", Algorithm::kMuon}, {"adamw", Algorithm::kAdamW}};
constexpr std::pair<std::string_view, NorMuonOn> kNorMuonOn[] = {{"all", NorMuonOn::kAll}, {"mlp", NorMuonOn::kMlp}};
constexpr std::pair<std::string_view, Decay> kDecays[] = {{"plain", Decay::kPlain}, {"cautious", Decay::kCautious}};
constexpr std::pair<std::string_view, Dtype> kDtypes[] = {{"f32", Dtype::kF32}, {"bf16", Dtype::kBf16}};
constexpr std::pair<std::string_view, WeightForm> kForms[] = {{"nearest", WeightForm::kBf16},
                                                              {"stochastic", WeightForm::kBf16Stochastic},
                                                              {"master", WeightForm::kBf16Master},
                                                              {"mantissa", WeightForm::kBf16Mantissa}};

// In each, `member` goes from a recipe to a reference into it.
template <typename Member>
RecipeField integer_field(std::string_view name, std::string_view help, Member member, Range range) {
  return {name, "N", help, [=](const Recipe& recipe) { return fmt::to_string(member(recipe)); },
          [=](Recipe& recipe, std::string_view text) {
            auto& value = member(recipe);
            value = static_cast<std::remove_reference_t<decltype(value)>>(integer(text, range));
          }};
}

template <typename Member>
RecipeField rate_field(std::string_view name, std::string_view help, Member member, double most) {
  return {name, "X", help, [=](const Recipe& recipe) { return fmt::to_string(member(recipe)); },
          [=](Recipe& recipe, std::string_view text) { member(recipe) = rate(text, most); }};
}

template <typename Member, typename Names>
RecipeField choice_field(std::string_view name, std::string_view help, Member member, const Names& names) {
  return {name, "NAME", help,
          [=, &names](const Recipe& recipe) {
            for (const auto& [text, value] : names) {
              if (value == member(recipe)) return std::string(text);
            }
            throw Internal("a value without a name");
          },
          [=, &names](Recipe& recipe, std::string_view text) {
            std::string known;
            for (const auto& [known_text, value] : names) {
              if (known_text == text) {
                member(recipe) = value;
                return;
              }
              known += (known.empty() ? "" : ", ") + std::string(known_text);
            }
            throw InvalidArgument(fmt::format("{} is none of {}", base::in_quotes(text), known));
          }};
}

RecipeField since(int version, RecipeField field) {
  field.since = version;
  return field;
}

std::vector<RecipeField> model_fields() {
  return {
      integer_field("layers", "Layers", [](auto& r) -> auto& { return r.model.layers; }, {1, 1000}),
      integer_field("width", "Width of a token", [](auto& r) -> auto& { return r.model.width; }, {2, 1 << 14}),
      integer_field("heads", "Heads of attention", [](auto& r) -> auto& { return r.model.heads; }, {1, 1 << 13}),
      integer_field("context", "Tokens per sequence", [](auto& r) -> auto& { return r.model.context; }, {1, 1 << 14}),
      choice_field(
          "attention",
          "How its weights are stored: separate, fused (q, k and v in one) or shared (all in the MLP's shape)",
          [](auto& r) -> auto& { return r.model.attention; }, kStorages),
      choice_field(
          "mlp", "Activation: relu2 or gelu", [](auto& r) -> auto& { return r.model.activation; }, kActivations),
      choice_field(
          "gates", "A gate for every head: on or off", [](auto& r) -> auto& { return r.model.gates; }, kSwitch),
      choice_field(
          "residual-scale",
          "A number for every output projection: on (times its weights), after (times its output) or off",
          [](auto& r) -> auto& { return r.model.residual_scale; }, kResidualScales),
      choice_field(
          "tied", "The head is the embedding: on or off", [](auto& r) -> auto& { return r.model.tied; }, kSwitch),
  };
}

std::vector<RecipeField> schedule_fields() {
  return {
      integer_field("seed", "Seed of the first weights and of the batches", [](auto& r) -> auto& { return r.seed; },
                    {0, std::numeric_limits<int64_t>::max()}),
      integer_field("steps", "Steps in which learning rates fall; --extension adds more",
                    [](auto& r) -> auto& { return r.steps; }, {1, 10'000'000}),
      since(2, choice_field(
                   "schedule", "How learning rates fall: linear, cooldown (in the last part) or cosine",
                   [](auto& r) -> auto& { return r.schedule.form; }, kSchedules)),
      since(2, rate_field(
                   "cooldown", "That last part of --steps, for --schedule cooldown",
                   [](auto& r) -> auto& { return r.schedule.cooldown; }, 1)),
      since(2, rate_field(
                   "final-lr", "Learning rates after --steps, as a part of the first",
                   [](auto& r) -> auto& { return r.schedule.final_rate; }, 1)),
      since(2, integer_field("extension", "Steps after --steps, at --final-lr",
                             [](auto& r) -> auto& { return r.schedule.extension; }, {0, 10'000'000})),
      integer_field("batch", "Sequences per step", [](auto& r) -> auto& { return r.batch; }, {1, 1 << 20}),
      integer_field("slots", "Parts of a batch, whose gradients are summed in order on any number of ranks",
                    [](auto& r) -> auto& { return r.slots; }, {1, 1 << 20}),
  };
}

std::vector<RecipeField> optimizer_fields() {
  return {
      choice_field(
          "optimizer", "Optimizer of the matrices: normuon, muon or adamw",
          [](auto& r) -> auto& { return r.algorithm; }, kAlgorithms),
      choice_field(
          "normuon", "Which matrices normuon is for: all or mlp; the others get muon",
          [](auto& r) -> auto& { return r.normuon_on; }, kNorMuonOn),
      since(2, choice_field(
                   "gate-axis", "NorMuon's mean squares of gates: rows (one per gate), columns or longer",
                   [](auto& r) -> auto& { return r.gate_axis; }, kGateAxes)),
      since(2, choice_field(
                   "wo-axis", "NorMuon's mean squares of attention's output projections: rows or columns",
                   [](auto& r) -> auto& { return r.output_axis; }, kOutputAxes)),
      rate_field(
          "lr", "Learning rate of Muon and NorMuon", [](auto& r) -> auto& { return r.lr; }, 1e6),
      rate_field(
          "adamw-lr", "Learning rate of AdamW", [](auto& r) -> auto& { return r.adamw_lr; }, 1e6),
      since(2, choice_field(
                   "step-scale", "Factor of a matrix's step, by its shape: none, spectral, jordan, rms or fan",
                   [](auto& r) -> auto& { return r.step_scale; }, kStepScales)),
      since(2, rate_field(
                   "attention-lr-mul", "Times the learning rate, for attention's matrices, gates left out",
                   [](auto& r) -> auto& { return r.attention_lr_mul; }, 1e6)),
      since(2, rate_field(
                   "up-lr-mul", "The same, for the MLPs' first matrices", [](auto& r) -> auto& { return r.up_lr_mul; },
                   1e6)),
      since(2, rate_field(
                   "down-lr-mul", "The same, for the MLPs' second matrices",
                   [](auto& r) -> auto& { return r.down_lr_mul; }, 1e6)),
      rate_field(
          "momentum", "Momentum of Muon and NorMuon", [](auto& r) -> auto& { return r.momentum; }, 1),
      rate_field(
          "weight-decay", "Decoupled weight decay, times the learning rate per step",
          [](auto& r) -> auto& { return r.weight_decay; }, 1e6),
      choice_field(
          "decay", "Kind of weight decay: plain or cautious", [](auto& r) -> auto& { return r.decay; }, kDecays),
      {"coefficients", "NAME", "Coefficients of Newton-Schulz", [](const Recipe& r) { return r.coefficients.name; },
       [](Recipe& r, std::string_view text) { r.coefficients = muster::coefficients(text); }},
      choice_field(
          "wire", "Dtype in which updates travel: f32 or bf16", [](auto& r) -> auto& { return r.wire; }, kDtypes),
      choice_field(
          "dtype", "Dtype of the weights: f32 or bf16", [](auto& r) -> auto& { return r.dtype; }, kDtypes),
      choice_field(
          "bf16-weights", "How bf16 weights are rounded: nearest or stochastic; or kept exact: master or mantissa",
          [](auto& r) -> auto& { return r.bf16_weights; }, kForms),
  };
}

}  // namespace

std::span<const RecipeField> recipe_fields() {
  static const std::vector<RecipeField> fields = [] {
    std::vector<RecipeField> all = model_fields();
    for (const auto& more : {schedule_fields(), optimizer_fields()}) all.insert(all.end(), more.begin(), more.end());
    return all;
  }();
  return fields;
}

void validate(const Recipe& recipe) {
  if (recipe.model.width % (2 * recipe.model.heads) != 0) {
    throw InvalidArgument(fmt::format("--heads: {} of them do not cut --width {} into even parts", recipe.model.heads,
                                      recipe.model.width));
  }
  if (recipe.batch % recipe.slots != 0) {
    throw InvalidArgument(fmt::format("--slots: {} do not divide --batch {}", recipe.slots, recipe.batch));
  }
  const Schedule& schedule = recipe.schedule;
  if (schedule.cooldown == 0) throw InvalidArgument("--cooldown: 0 steps to fall in");
  if (schedule.form != Schedule::Form::kCooldown && schedule.cooldown != Schedule::kDefaultCooldown) {
    throw InvalidArgument(fmt::format("--cooldown: {} is for --schedule cooldown", schedule.cooldown));
  }
  if (schedule.extension > 0 && schedule.final_rate == 0) {
    throw InvalidArgument(
        fmt::format("--extension: {} steps at --final-lr 0 would change no weight", schedule.extension));
  }
}

}  // namespace muster::train
