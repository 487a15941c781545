#include "engine/checkpoint/checkpoint_index.h"

#include <algorithm>
#include <array>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/alignment.h"
#include "base/json.h"
#include "base/limits.h"
#include "base/text.h"
#include "engine/checkpoint/checksum.h"

namespace muster::engine {

using base::fail;
using base::in_quotes;
using base::Json;

namespace {

constexpr std::string_view kFormat = "muster checkpoint";
constexpr int64_t kVersion = 1;
constexpr size_t kTensorsPerFile = 10'000;  // with names of 1 KiB, a quarter of the header size that readers allow
constexpr std::string_view kSealOpens = "{\"checksum\": \"";
constexpr std::string_view kSealCloses = "\",\n";
constexpr size_t kHexDigits = 16;

struct TypeName {
  StateType type;
  std::string_view name;
};
constexpr std::array<TypeName, 4> kTypes = {{
    {StateType::kF32, "F32"},
    {StateType::kBf16, "BF16"},
    {StateType::kU16, "U16"},
    {StateType::kI64, "I64"},
}};

std::string tensor(const std::string& name) { return "tensor " + in_quotes(name); }

// The text as a JSON string.
std::string quoted(const std::string& text) {
  try {
    return Json(text).dump();
  } catch (const Json::exception&) {
    fail("{} is not UTF-8", in_quotes(text));
  }
}

void check_tensor_name(const std::string& name, std::string_view where) {
  base::check_name(name, where, "tensor name");
  if (name == "__metadata__") fail("{}: no tensor can be named {}", where, in_quotes(name));
}

int64_t file_bytes_of(const FileEntry& file) {
  auto bytes = static_cast<int64_t>(file_header(file).size());
  for (const TensorEntry& t : file.tensors) {
    if (__builtin_add_overflow(bytes, tensor_bytes(t.info), &bytes)) {
      fail("{}: has more than 2^63 - 1 bytes", in_quotes(file.name));
    }
  }
  return bytes;
}

bool is_hex(std::string_view text) {
  return text.size() == kHexDigits && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

bool is_number(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

uint64_t parse_checksum(const std::string& text, std::string_view where) {
  if (!is_hex(text)) fail("{}: checksum {} is not {} hex digits", where, in_quotes(text), kHexDigits);
  return std::stoull(text, nullptr, 16);
}

// The part of the index that the checksum covers. Fails if the checksum does not match.
std::string_view unseal(std::string_view text, const std::string& where) {
  const size_t sealed = kSealOpens.size() + kHexDigits + kSealCloses.size();
  if (text.size() < sealed || seal_index(text.substr(sealed)) != text) {
    fail("{}: damaged, or not written by Muster: its checksum does not match", where);
  }
  return text.substr(sealed);
}

TensorEntry parse_tensor(const Json& json, const std::string& where) {
  base::Members members(json, where);
  TensorEntry t;
  t.info.name = base::to_string(members.at("name"), where, "name");
  check_tensor_name(t.info.name, where);
  members.set_where(fmt::format("{}: {}", where, tensor(t.info.name)));
  const std::string& place = members.where();
  const std::string& dtype = base::to_string(members.at("dtype"), place, "dtype");
  const auto* const type = std::ranges::find(kTypes, dtype, &TypeName::name);
  if (type == kTypes.end()) fail("{}: unknown dtype {}", place, in_quotes(dtype));
  t.info.type = type->type;
  const Json& shape = base::to_array(members.at("shape"), place, "shape");
  if (shape.size() > kMaxDims) fail("{}: has {} dims; at most {} are allowed", place, shape.size(), kMaxDims);
  for (const Json& dim : shape) t.info.shape.push_back(base::to_integer(dim, place, "shape", 0, base::kMaxInteger));
  t.checksum = parse_checksum(base::to_string(members.at("checksum"), place, "checksum"), place);
  members.finish();
  return t;
}

FileEntry parse_file(const Json& json, const std::string& where) {
  base::Members members(json, where);
  FileEntry file;
  file.name = base::to_string(members.at("name"), where, "name");
  // Only names that a save writes: they have no folder, so the index cannot point outside the directory.
  if (!is_checkpoint_file(file.name))
    fail("{}: {} is not the name of a checkpoint's file", where, in_quotes(file.name));
  const std::string place = fmt::format("{}: file {}", where, in_quotes(file.name));
  members.set_where(place);
  file.bytes = base::to_integer(members.at("bytes"), place, "bytes", 0, base::kMaxInteger);
  for (const Json& t : base::to_array(members.at("tensors"), place, "tensors")) {
    file.tensors.push_back(parse_tensor(t, place));
  }
  members.finish();
  if (const int64_t needed = file_bytes_of(file); needed != file.bytes) {
    fail("{}: 'bytes' is {}, its tensors need {}", place, file.bytes, needed);
  }
  return file;
}

}  // namespace

std::string_view dtype_name(StateType type) {
  const auto* const found = std::ranges::find(kTypes, type, &TypeName::type);
  if (found == kTypes.end()) throw Internal("a state type without a name");
  return found->name;
}

int64_t tensor_bytes(const StateInfo& info) {
  int64_t bytes = byte_size(info.type);
  // Look for a 0 first: the dims before it may overflow.
  if (std::find(info.shape.begin(), info.shape.end(), 0) != info.shape.end()) bytes = 0;
  for (const int64_t dim : info.shape) {
    if (dim < 0 || (bytes > 0 && __builtin_mul_overflow(bytes, dim, &bytes))) {
      fail("{}: shape [{}] has a negative dim or more than 2^63 - 1 bytes", tensor(info.name),
           fmt::join(info.shape, ", "));
    }
  }
  return bytes;
}

CheckpointIndex lay_out(const CheckpointMeta& meta, std::span<const StateShard> shards, int64_t file_bytes,
                        uint64_t token) {
  if (meta.step < 0) fail("a checkpoint of step {}", meta.step);
  CheckpointIndex index{meta, {}};
  std::set<std::string_view> names;
  int64_t room = 0;
  for (const StateShard& shard : shards) {
    check_tensor_name(shard.info.name, "checkpoint");
    if (!names.insert(shard.info.name).second) fail("{}: given twice", tensor(shard.info.name));
    if (shard.info.shape.size() > kMaxDims) {
      fail("{}: has {} dims; at most {} are allowed", tensor(shard.info.name), shard.info.shape.size(), kMaxDims);
    }
    const int64_t bytes = tensor_bytes(shard.info);
    if (index.files.empty() || bytes > room || index.files.back().tensors.size() == kTensorsPerFile) {
      index.files.push_back(
          {fmt::format("muster.{}.{:016x}.{:05}.safetensors", meta.step, token, index.files.size()), 0, {}});
      room = file_bytes;
    }
    index.files.back().tensors.push_back({shard.info, 0});
    room -= std::min(room, bytes);
  }
  for (FileEntry& file : index.files) {
    // Wide elements first, so that every tensor is aligned for readers that map the file.
    std::stable_sort(file.tensors.begin(), file.tensors.end(), [](const TensorEntry& a, const TensorEntry& b) {
      return byte_size(a.info.type) > byte_size(b.info.type);
    });
    file.bytes = file_bytes_of(file);
  }
  return index;
}

std::string file_header(const FileEntry& file) {
  std::string text = "{";
  int64_t begin = 0;
  for (const TensorEntry& t : file.tensors) {
    // May wrap if the index is wrong; file_bytes_of then refuses it.
    const auto end = static_cast<int64_t>(static_cast<uint64_t>(begin) + static_cast<uint64_t>(tensor_bytes(t.info)));
    text += fmt::format(R"({}{}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", text.size() > 1 ? "," : "",
                        quoted(t.info.name), dtype_name(t.info.type), fmt::join(t.info.shape, ","), begin, end);
    begin = end;
  }
  text += "}";
  text.resize(static_cast<size_t>(base::round_up(std::ssize(text), 8)), ' ');
  std::string start;
  for (int byte = 0; byte < 8; ++byte) start += static_cast<char>(text.size() >> (8 * byte) & 0xff);
  return start + text;
}

std::string index_text(const CheckpointIndex& index) {
  std::string rest = fmt::format("\"format\": \"{}\",\n\"version\": {},\n\"step\": {},\n\"values\": {{", kFormat,
                                 kVersion, index.meta.step);
  const char* separator = "\n";
  for (const auto& [key, value] : index.meta.values) {
    rest += fmt::format("{}{}: {}", separator, quoted(key), quoted(value));
    separator = ",\n";
  }
  rest += "},\n\"files\": [";
  separator = "\n";
  for (const FileEntry& file : index.files) {
    rest += fmt::format("{}{{\"name\": \"{}\", \"bytes\": {}, \"tensors\": [", separator, file.name, file.bytes);
    separator = "\n";
    for (const TensorEntry& t : file.tensors) {
      rest += fmt::format(R"({}{{"name": {}, "dtype": "{}", "shape": [{}], "checksum": "{:016x}"}})", separator,
                          quoted(t.info.name), dtype_name(t.info.type), fmt::join(t.info.shape, ", "), t.checksum);
      separator = ",\n";
    }
    rest += "]}";
    separator = ",\n";
  }
  return seal_index(rest + "]}\n");
}

std::string seal_index(std::string_view rest) {
  return fmt::format("{}{:016x}{}{}", kSealOpens, checksum(rest), kSealCloses, rest);
}

CheckpointIndex parse_index(std::string_view text, const std::string& where) {
  const std::string body = "{" + std::string(unseal(text, where));
  const Json json = base::parse_json(body, where);
  base::Members members(json, where);
  if (base::to_string(members.at("format"), where, "format") != kFormat) fail("{}: not a Muster checkpoint", where);
  const int64_t version = base::to_integer(members.at("version"), where, "version", 1, base::kMaxInteger);
  if (version != kVersion) fail("{}: format version {}; this build reads {}", where, version, kVersion);
  CheckpointIndex index;
  index.meta.step = base::to_integer(members.at("step"), where, "step", 0, base::kMaxInteger);
  const Json& values = members.at("values");
  if (!values.is_object()) fail("{}: 'values' must be an object, not {}", where, base::shown(values));
  for (const auto& [key, value] : values.items()) index.meta.values[key] = base::to_string(value, where, key);
  std::set<std::string> names;
  for (const Json& json_file : base::to_array(members.at("files"), where, "files")) {
    index.files.push_back(parse_file(json_file, where));
    const FileEntry& file = index.files.back();
    if (!names.insert(file.name).second) fail("{}: file {} is given twice", where, in_quotes(file.name));
  }
  members.finish();
  std::set<std::string_view> tensors;
  for (const FileEntry& file : index.files) {
    for (const TensorEntry& t : file.tensors) {
      if (!tensors.insert(t.info.name).second) fail("{}: {} is given twice", where, tensor(t.info.name));
    }
  }
  return index;
}

std::string temporary_index_name(uint64_t token) { return fmt::format("muster.index.{:016x}.tmp", token); }

bool is_checkpoint_file(std::string_view name) {
  constexpr size_t kLongest = 128;
  if (name.size() > kLongest) return false;
  const std::vector<std::string_view> parts = base::split(name, '.');
  if (parts.size() == 4) return parts[0] == "muster" && parts[1] == "index" && is_hex(parts[2]) && parts[3] == "tmp";
  return parts.size() == 5 && parts[0] == "muster" && is_number(parts[1]) && is_hex(parts[2]) && is_number(parts[3]) &&
         parts[4] == "safetensors";
}

}  // namespace muster::engine
