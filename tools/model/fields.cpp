#include "model/fields.h"

#include <set>
#include <utility>

#include "base/limits.h"
#include "base/text.h"

namespace muster::model {

namespace {

template <typename T>
using Words = std::initializer_list<std::pair<std::string_view, T>>;

template <typename T>
T to_word(const base::Json& value, std::string_view where, std::string_view key, Words<T> words) {
  std::string known;
  for (const auto& [word, meaning] : words) {
    if (value.is_string() && value.get_ref<const std::string&>() == word) return meaning;
    known += (known.empty() ? "" : ", ") + std::string(word);
  }
  base::fail("{}: {} is {}, not one of {}", where, base::in_quotes(key), base::shown(value), known);
}

NormAxis to_norm_axis(const base::Json& value, std::string_view where, std::string_view key) {
  return to_word<NormAxis>(value, where, key,
                           {{"rows", NormAxis::kRows}, {"columns", NormAxis::kColumns}, {"longer", NormAxis::kLonger}});
}

Dim to_dim(const base::Json& value, std::string_view where, std::string_view key) {
  if (value.is_string()) {
    base::check_name(value.get_ref<const std::string&>(), where, "variable name");
    return {0, value.get<std::string>()};
  }
  return {base::to_integer(value, where, key, 1, base::kMaxInteger), {}};
}

std::vector<int64_t> to_sizes(const base::Json& value, std::string_view where, std::string_view key) {
  std::vector<int64_t> sizes;
  for (const base::Json& size : base::to_array(value, where, key))
    sizes.push_back(base::to_integer(size, where, key, 0, base::kMaxInteger));
  if (sizes.empty()) base::fail("{}: {} is empty", where, base::in_quotes(key));
  return sizes;
}

Placement to_placement(const base::Json& value, const std::string& where) {
  if (value.is_string()) {
    const std::string& word = value.get_ref<const std::string&>();
    if (word == "replicate") return Placement::replicate();
    if (word == "flat") return Placement::flat();
    const bool shard = word.size() == 8 && word.starts_with("shard(") && word.ends_with(')');
    if (shard && word[6] >= '0' && word[6] < '0' + kMaxDims) return Placement::shard(word[6] - '0');
    base::fail("{}: {} is not replicate, shard(0) to shard({}) or flat", where, base::in_quotes(word), kMaxDims - 1);
  }
  base::Members members(value, where);
  Placement placement;
  if (const base::Json* flat = members.find("flat")) {
    placement = Placement::flat();
    if (flat->is_array()) {
      placement.sizes = to_sizes(*flat, where, "flat");
    } else if (!base::to_bool(*flat, where, "flat")) {
      base::fail("{}: 'flat' is false; leave it out", where);
    }
  } else {
    placement =
        Placement::shard(static_cast<int>(base::to_integer(members.at("shard"), where, "shard", 0, kMaxDims - 1)));
    placement.split_factor = static_cast<int32_t>(members.integer("split_factor", 1, INT32_MAX).value_or(1));
    if (const base::Json* sizes = members.find("sizes")) placement.sizes = to_sizes(*sizes, where, "sizes");
  }
  members.finish();
  return placement;
}

std::vector<Placement> to_alternatives(const base::Json& value, const std::string& where) {
  if (!value.is_array()) return {to_placement(value, where)};
  std::vector<Placement> alternatives;
  for (const base::Json& alternative : value) {
    alternatives.push_back(to_placement(alternative, where));
    if (alternatives.back().kind != Placement::Kind::kShard) {
      base::fail("{}: alternative {} does not shard a dim", where, base::shown(alternative));
    }
  }
  if (alternatives.empty()) base::fail("{}: no alternatives in []", where);
  return alternatives;
}

Cut to_pieces(const base::Json& value, const std::string& where, std::string_view key) {
  Cut cut;
  for (const base::Json& piece : base::to_array(value, where, key)) {
    if (!piece.is_object()) {
      cut.pieces.push_back({to_dim(piece, where, key), {}, {}});
      continue;
    }
    base::Members members(piece, where);
    Cut::Piece parsed;
    parsed.size = to_dim(members.at("size"), where, "size");
    parsed.normuon = members.boolean("normuon");
    if (const base::Json* axis = members.find("norm_axis")) parsed.norm_axis = to_norm_axis(*axis, where, "norm_axis");
    members.finish();
    cut.pieces.push_back(std::move(parsed));
  }
  return cut;
}

std::optional<Cut> parse_cut(base::Members& members, std::string_view pieces_key, std::string_view heads_key) {
  const base::Json* pieces = members.find(pieces_key);
  const base::Json* heads = members.find(heads_key);
  if (pieces && heads)
    base::fail("{}: {} and {} exclude each other", members.where(), base::in_quotes(pieces_key),
               base::in_quotes(heads_key));
  if (pieces) return to_pieces(*pieces, members.where(), pieces_key);
  if (heads) return Cut{to_dim(*heads, members.where(), heads_key), {}};
  return std::nullopt;
}

std::vector<std::string> to_order(const base::Json& value, std::string_view where) {
  std::vector<std::string> order;
  std::set<std::string_view> seen;
  for (const base::Json& axis : base::to_array(value, where, "order")) {
    const std::string& name = base::to_string(axis, where, "order");
    if (!seen.insert(name).second) base::fail("{}: 'order' names axis {} twice", where, base::in_quotes(name));
    order.push_back(name);
  }
  return order;
}

template <typename T>
void take(std::optional<T>& mine, const std::optional<T>& theirs) {
  if (theirs) mine = theirs;
}

}  // namespace

int64_t resolve(const Dim& dim, const Variables& variables, std::string_view where) {
  if (dim.variable.empty()) return dim.value;
  const auto found = variables.find(dim.variable);
  if (found == variables.end()) base::fail("{}: variable {} is not declared", where, base::in_quotes(dim.variable));
  return found->second;
}

void Fields::overlay(const Fields& other) {
  take(dtype, other.dtype);
  take(grad_dtype, other.grad_dtype);
  take(mesh, other.mesh);
  for (const auto& [axis, alternatives] : other.placements) placements[axis] = alternatives;
  take(order, other.order);
  take(algorithm, other.algorithm);
  take(norm_axis, other.norm_axis);
  take(rows, other.rows);
  take(columns, other.columns);
  take(view, other.view);
  take(flatten, other.flatten);
  take(output_dim, other.output_dim);
  take(scale_shape, other.scale_shape);
  take(multiplier, other.multiplier);
}

Dtype to_dtype(const base::Json& value, std::string_view where, std::string_view key) {
  return to_word<Dtype>(value, where, key, {{"f32", Dtype::kF32}, {"bf16", Dtype::kBf16}, {"f16", Dtype::kF16}});
}

std::vector<Dim> to_dims(const base::Json& value, std::string_view where, std::string_view key) {
  if (base::to_array(value, where, key).size() > kMaxDims) {
    base::fail("{}: {} has {} dims; at most {} are allowed", where, base::in_quotes(key), value.size(), kMaxDims);
  }
  std::vector<Dim> dims;
  for (const base::Json& dim : value) dims.push_back(to_dim(dim, where, key));
  return dims;
}

Fields parse_fields(base::Members& members) {
  Fields fields;
  const std::string& where = members.where();
  if (const base::Json* value = members.find("dtype")) fields.dtype = to_dtype(*value, where, "dtype");
  if (const base::Json* value = members.find("grad_dtype")) fields.grad_dtype = to_dtype(*value, where, "grad_dtype");
  fields.mesh = members.string("mesh");
  if (const base::Json* value = members.find("placements")) {
    if (!value->is_object()) base::fail("{}: 'placements' must be an object, not {}", where, base::shown(*value));
    for (const auto& [axis, placement] : value->items()) {
      fields.placements[axis] = to_alternatives(placement, fmt::format("{}: axis {}", where, base::in_quotes(axis)));
    }
  }
  if (const base::Json* value = members.find("order")) fields.order = to_order(*value, where);
  if (const base::Json* value = members.find("algorithm")) {
    fields.algorithm = to_word<Algorithm>(*value, where, "algorithm",
                                          {{"muon", Algorithm::kMuon},
                                           {"normuon", Algorithm::kNorMuon},
                                           {"adamw", Algorithm::kAdamW},
                                           {"lion", Algorithm::kLion}});
  }
  if (const base::Json* value = members.find("norm_axis")) fields.norm_axis = to_norm_axis(*value, where, "norm_axis");
  fields.rows = parse_cut(members, "rows", "heads");
  fields.columns = parse_cut(members, "columns", "column_heads");
  if (const base::Json* value = members.find("view")) fields.view = to_dims(*value, where, "view");
  fields.flatten = members.boolean("flatten");
  if (const auto dim = members.integer("output_dim", 0, 1)) fields.output_dim = static_cast<int>(*dim);
  if (const base::Json* value = members.find("scale_shape")) {
    fields.scale_shape = to_word<ScaleShape>(*value, where, "scale_shape",
                                             {{"block", ScaleShape::kBlock}, {"parameter", ScaleShape::kParameter}});
  }
  if (const base::Json* value = members.find("multiplier")) {
    fields.multiplier = base::to_number(*value, where, "multiplier");
    if (!(*fields.multiplier > 0)) base::fail("{}: 'multiplier' is {}; it must be above 0", where, base::shown(*value));
  }
  return fields;
}

}  // namespace muster::model
