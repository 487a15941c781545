#include "model/safetensors.h"

#include <algorithm>

#include "base/json.h"
#include "base/limits.h"
#include "base/text.h"

namespace muster::model {

namespace {

constexpr int64_t kLengthBytes = 8;

// Nothing for a dtype that we do not know; its size cannot be checked.
std::optional<int64_t> dtype_bytes(const std::string& dtype) {
  static const std::map<std::string, int64_t> kBytes = {
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"U16", 2}, {"I16", 2}, {"F16", 2},
      {"BF16", 2}, {"U32", 4}, {"I32", 4}, {"F32", 4},     {"U64", 8},     {"I64", 8}, {"F64", 8}};
  const auto found = kBytes.find(dtype);
  return found == kBytes.end() ? std::nullopt : std::optional(found->second);
}

struct Extent {
  int64_t begin = 0;
  int64_t end = 0;
  std::string_view name;
};

Extent parse_offsets(const base::Json& json, std::string_view name, const std::string& where) {
  if (base::to_array(json, where, "data_offsets").size() != 2)
    base::fail("{}: 'data_offsets' has {} values", where, json.size());
  const Extent extent{base::to_integer(json[0], where, "data_offsets", 0, base::kMaxInteger),
                      base::to_integer(json[1], where, "data_offsets", 0, base::kMaxInteger), name};
  if (extent.begin > extent.end)
    base::fail("{}: 'data_offsets' [{}, {}] end before they begin", where, extent.begin, extent.end);
  return extent;
}

void check_size(const Tensor& tensor, const Extent& extent, const std::string& where) {
  std::optional<int64_t> bytes = dtype_bytes(tensor.dtype);
  if (!bytes) return;
  // Any 0 first: the dims before it may overflow.
  const bool empty = std::find(tensor.shape.begin(), tensor.shape.end(), 0) != tensor.shape.end();
  for (const int64_t dim : tensor.shape) {
    if (!empty && __builtin_mul_overflow(*bytes, dim, &*bytes)) base::fail("{}: has more than 2^63 - 1 bytes", where);
  }
  if (empty) *bytes = 0;
  if (*bytes != extent.end - extent.begin) {
    base::fail("{}: 'data_offsets' hold {} bytes, shape and dtype {} need {}", where, extent.end - extent.begin,
               base::in_quotes(tensor.dtype), *bytes);
  }
}

// Every byte of the data belongs to exactly one tensor, as the format demands.
void check_cover(std::vector<Extent> extents, int64_t data_bytes, const std::string& where) {
  std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  int64_t position = 0;
  for (const Extent& extent : extents) {
    if (extent.begin != position) {
      base::fail("{}: tensor {}: begins at byte {} of the data, {} it", where, base::in_quotes(extent.name),
                 extent.begin, extent.begin < position ? "within the tensor before" : "leaving a hole before");
    }
    position = extent.end;
  }
  if (position != data_bytes) base::fail("{}: tensors take {} bytes, the file holds {}", where, position, data_bytes);
}

}  // namespace

int64_t safetensors_header_bytes(std::string_view start, int64_t file_bytes, const std::string& where) {
  if (file_bytes < kLengthBytes || static_cast<int64_t>(start.size()) < kLengthBytes) {
    base::fail("{}: {} bytes are too few for a safetensors file", where, file_bytes);
  }
  uint64_t length = 0;
  for (size_t i = kLengthBytes; i-- > 0;) length = length << 8 | static_cast<unsigned char>(start[i]);
  if (length > static_cast<uint64_t>(std::min(base::kMaxHeaderBytes, file_bytes - kLengthBytes))) {
    base::fail("{}: header length {} is more than the file ({} bytes) or the format ({}) allows", where, length,
               file_bytes, base::kMaxHeaderBytes);
  }
  return static_cast<int64_t>(length);
}

std::vector<Tensor> parse_safetensors(std::string_view start, int64_t file_bytes, const std::string& where) {
  const int64_t length = safetensors_header_bytes(start, file_bytes, where);
  const std::string_view header = start.substr(kLengthBytes, static_cast<size_t>(length));
  if (static_cast<int64_t>(header.size()) < length) base::fail("{}: the header is cut short", where);
  if (!header.starts_with('{')) base::fail("{}: the header does not begin with an opening brace", where);
  const base::Json json = base::parse_json(header, where + ": header");
  std::vector<Tensor> tensors;
  std::vector<Extent> extents;
  for (const auto& [name, entry] : json.items()) {
    if (name == "__metadata__") continue;
    base::check_name(name, where, "tensor name");
    const std::string place = fmt::format("{}: tensor {}", where, base::in_quotes(name));
    base::Members members(entry, place);
    Tensor tensor{name, base::to_string(members.at("dtype"), place, "dtype"), {}};
    const base::Json& shape = base::to_array(members.at("shape"), place, "shape");
    if (shape.size() > kMaxDims) base::fail("{}: has {} dims; at most {} are allowed", place, shape.size(), kMaxDims);
    for (const base::Json& dim : shape)
      tensor.shape.push_back(base::to_integer(dim, place, "shape", 0, base::kMaxInteger));
    extents.push_back(parse_offsets(members.at("data_offsets"), name, place));
    check_size(tensor, extents.back(), place);
    tensors.push_back(std::move(tensor));
  }
  check_cover(std::move(extents), file_bytes - kLengthBytes - length, where);
  return tensors;
}

std::map<std::string, std::vector<std::string>> parse_safetensors_index(std::string_view text,
                                                                        const std::string& where) {
  const base::Json json = base::parse_json(text, where);
  const base::Json& map = base::Members(json, where).at("weight_map");
  if (!map.is_object()) base::fail("{}: 'weight_map' must be an object, not {}", where, base::shown(map));
  std::map<std::string, std::vector<std::string>> files;
  for (const auto& [name, value] : map.items()) {
    base::check_name(name, where, "tensor name");
    const std::string& file = base::to_string(value, where, name);
    base::check_name(file, fmt::format("{}: tensor {}", where, base::in_quotes(name)), "file name");
    // An index speaks of its own folder only.
    if (file.find_first_of("/\\:") != std::string::npos || file == "." || file == "..") {
      base::fail("{}: tensor {}: {} is not a file name in the index's folder", where, base::in_quotes(name),
                 base::in_quotes(file));
    }
    files[file].push_back(name);
  }
  if (files.empty()) base::fail("{}: 'weight_map' is empty", where);
  return files;
}

ModelFile model_from_tensors(const std::vector<Tensor>& tensors, const Rules& rules, const std::string& name) {
  static const std::map<std::string, Dtype> kDtypes = {
      {"F32", Dtype::kF32}, {"BF16", Dtype::kBf16}, {"F16", Dtype::kF16}};
  ModelFile file;
  file.name = name;
  file.source = "safetensors header";
  RuleUse use(rules);
  for (const Tensor& tensor : tensors) {
    const std::string where = "tensor " + base::in_quotes(tensor.name);
    use.see(tensor.name);
    const Rule* rule = rules.find(tensor.name);
    if (!rule) base::fail("{}: no rule matches it", where);
    if (rule->skip) continue;
    const auto dtype = kDtypes.find(tensor.dtype);
    if (dtype == kDtypes.end()) {
      base::fail("{}: dtype {} is not F32, BF16 or F16; a rule may skip it", where, base::in_quotes(tensor.dtype));
    }
    Entry entry;
    entry.name = tensor.name;
    entry.fields.dtype = dtype->second;
    entry.fields.overlay(rules.defaults);
    entry.fields.overlay(rule->fields);
    for (const int64_t dim : tensor.shape) {
      if (dim == 0) base::fail("{}: has a dim of 0; a rule may skip it", where);
      entry.shape.push_back({dim, {}});
    }
    if (entry.shape.empty()) entry.shape.push_back({1, {}});  // a scalar is one element
    file.entries.push_back(std::move(entry));
  }
  use.check();
  return file;
}

}  // namespace muster::model
