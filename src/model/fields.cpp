#include "model/fields.h"

#include <set>
#include <utility>

#include "model/limits.h"
#include "model/text.h"

namespace muster::model {

namespace {

template <typename T>
using Words = std::initializer_list<std::pair<std::string_view, T>>;

template <typename T>
T to_word(const Json& value, std::string_view where, std::string_view key, Words<T> words) {
  std::string known;
  for (const auto& [word, meaning] : words) {
    if (value.is_string() && value.get_ref<const std::string&>() == word) return meaning;
    known += (known.empty() ? "" : ", ") + std::string(word);
  }
  fail("{}: {} is {}, not one of {}", where, in_quotes(key), shown(value), known);
}

NormAxis to_norm_axis(const Json& value, std::string_view where, std::string_view key) {
  return to_word<NormAxis>(value, where, key,
                           {{"rows", NormAxis::kRows}, {"columns", NormAxis::kColumns}, {"longer", NormAxis::kLonger}});
}

Dim to_dim(const Json& value, std::string_view where, std::string_view key) {
  if (value.is_string()) {
    check_name(value.get_ref<const std::string&>(), where, "variable name");
    return {0, value.get<std::string>()};
  }
  return {to_integer(value, where, key, 1, kMaxInteger), {}};
}

std::vector<int64_t> to_sizes(const Json& value, std::string_view where, std::string_view key) {
  std::vector<int64_t> sizes;
  for (const Json& size : to_array(value, where, key)) sizes.push_back(to_integer(size, where, key, 0, kMaxInteger));
  if (sizes.empty()) fail("{}: {} is empty", where, in_quotes(key));
  return sizes;
}

Placement to_placement(const Json& value, const std::string& where) {
  if (value.is_string()) {
    const std::string& word = value.get_ref<const std::string&>();
    if (word == "replicate") return Placement::replicate();
    if (word == "flat") return Placement::flat();
    const bool shard = word.size() == 8 && word.starts_with("shard(") && word.ends_with(')');
    if (shard && word[6] >= '0' && word[6] < '0' + kMaxDims) return Placement::shard(word[6] - '0');
    fail("{}: {} is not replicate, shard(0) to shard({}) or flat", where, in_quotes(word), kMaxDims - 1);
  }
  Members members(value, where);
  Placement placement;
  if (const Json* flat = members.find("flat")) {
    placement = Placement::flat();
    if (flat->is_array()) {
      placement.sizes = to_sizes(*flat, where, "flat");
    } else if (!to_bool(*flat, where, "flat")) {
      fail("{}: 'flat' is false; leave it out", where);
    }
  } else {
    placement = Placement::shard(static_cast<int>(to_integer(members.at("shard"), where, "shard", 0, kMaxDims - 1)));
    placement.split_factor = static_cast<int32_t>(members.integer("split_factor", 1, INT32_MAX).value_or(1));
    if (const Json* sizes = members.find("sizes")) placement.sizes = to_sizes(*sizes, where, "sizes");
  }
  members.finish();
  return placement;
}

std::vector<Placement> to_alternatives(const Json& value, const std::string& where) {
  if (!value.is_array()) return {to_placement(value, where)};
  std::vector<Placement> alternatives;
  for (const Json& alternative : value) {
    alternatives.push_back(to_placement(alternative, where));
    if (alternatives.back().kind != Placement::Kind::kShard) {
      fail("{}: alternative {} does not shard a dim", where, shown(alternative));
    }
  }
  if (alternatives.empty()) fail("{}: no alternatives in []", where);
  return alternatives;
}

Cut to_pieces(const Json& value, const std::string& where, std::string_view key) {
  Cut cut;
  for (const Json& piece : to_array(value, where, key)) {
    if (!piece.is_object()) {
      cut.pieces.push_back({to_dim(piece, where, key), {}, {}});
      continue;
    }
    Members members(piece, where);
    Cut::Piece parsed;
    parsed.size = to_dim(members.at("size"), where, "size");
    parsed.normuon = members.boolean("normuon");
    if (const Json* axis = members.find("norm_axis")) parsed.norm_axis = to_norm_axis(*axis, where, "norm_axis");
    members.finish();
    cut.pieces.push_back(std::move(parsed));
  }
  return cut;
}

std::optional<Cut> parse_cut(Members& members, std::string_view pieces_key, std::string_view heads_key) {
  const Json* pieces = members.find(pieces_key);
  const Json* heads = members.find(heads_key);
  if (pieces && heads)
    fail("{}: {} and {} exclude each other", members.where(), in_quotes(pieces_key), in_quotes(heads_key));
  if (pieces) return to_pieces(*pieces, members.where(), pieces_key);
  if (heads) return Cut{to_dim(*heads, members.where(), heads_key), {}};
  return std::nullopt;
}

std::vector<std::string> to_order(const Json& value, std::string_view where) {
  std::vector<std::string> order;
  std::set<std::string_view> seen;
  for (const Json& axis : to_array(value, where, "order")) {
    const std::string& name = to_string(axis, where, "order");
    if (!seen.insert(name).second) fail("{}: 'order' names axis {} twice", where, in_quotes(name));
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
  if (found == variables.end()) fail("{}: variable {} is not declared", where, in_quotes(dim.variable));
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

Dtype to_dtype(const Json& value, std::string_view where, std::string_view key) {
  return to_word<Dtype>(value, where, key, {{"f32", Dtype::kF32}, {"bf16", Dtype::kBf16}, {"f16", Dtype::kF16}});
}

std::vector<Dim> to_dims(const Json& value, std::string_view where, std::string_view key) {
  if (to_array(value, where, key).size() > kMaxDims) {
    fail("{}: {} has {} dims; at most {} are allowed", where, in_quotes(key), value.size(), kMaxDims);
  }
  std::vector<Dim> dims;
  for (const Json& dim : value) dims.push_back(to_dim(dim, where, key));
  return dims;
}

Fields parse_fields(Members& members) {
  Fields fields;
  const std::string& where = members.where();
  if (const Json* value = members.find("dtype")) fields.dtype = to_dtype(*value, where, "dtype");
  if (const Json* value = members.find("grad_dtype")) fields.grad_dtype = to_dtype(*value, where, "grad_dtype");
  fields.mesh = members.string("mesh");
  if (const Json* value = members.find("placements")) {
    if (!value->is_object()) fail("{}: 'placements' must be an object, not {}", where, shown(*value));
    for (const auto& [axis, placement] : value->items()) {
      fields.placements[axis] = to_alternatives(placement, fmt::format("{}: axis {}", where, in_quotes(axis)));
    }
  }
  if (const Json* value = members.find("order")) fields.order = to_order(*value, where);
  if (const Json* value = members.find("algorithm")) {
    fields.algorithm = to_word<Algorithm>(*value, where, "algorithm",
                                          {{"muon", Algorithm::kMuon},
                                           {"normuon", Algorithm::kNorMuon},
                                           {"adamw", Algorithm::kAdamW},
                                           {"lion", Algorithm::kLion}});
  }
  if (const Json* value = members.find("norm_axis")) fields.norm_axis = to_norm_axis(*value, where, "norm_axis");
  fields.rows = parse_cut(members, "rows", "heads");
  fields.columns = parse_cut(members, "columns", "column_heads");
  if (const Json* value = members.find("view")) fields.view = to_dims(*value, where, "view");
  fields.flatten = members.boolean("flatten");
  if (const auto dim = members.integer("output_dim", 0, 1)) fields.output_dim = static_cast<int>(*dim);
  if (const Json* value = members.find("scale_shape")) {
    fields.scale_shape = to_word<ScaleShape>(*value, where, "scale_shape",
                                             {{"block", ScaleShape::kBlock}, {"parameter", ScaleShape::kParameter}});
  }
  if (const Json* value = members.find("multiplier")) {
    fields.multiplier = to_number(*value, where, "multiplier");
    if (!(*fields.multiplier > 0)) fail("{}: 'multiplier' is {}; it must be above 0", where, shown(*value));
  }
  return fields;
}

}  // namespace muster::model
