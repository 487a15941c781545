// The header of a safetensors file: 8 bytes of length, then JSON. The data behind it is never read.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "model/model_file.h"
#include "model/rules.h"
#include "muster/layout.h"

namespace muster::model {

struct Tensor {
  std::string name;
  std::string dtype;  // as the header spells it: F32, BF16, I64, ...
  Shape shape;
};

// From the first 8 bytes of a file of `file_bytes`; fails unless a header of that length fits.
int64_t safetensors_header_bytes(std::string_view start, int64_t file_bytes, const std::string& where);

// `start` is the file up to at least the end of the header. In name order.
std::vector<Tensor> parse_safetensors(std::string_view start, int64_t file_bytes, const std::string& where);

// The weight map of a sharded model: file name -> the tensors that must be in it. File names have no folder.
std::map<std::string, std::vector<std::string>> parse_safetensors_index(std::string_view text,
                                                                        const std::string& where);

// Each tensor as the first rule that matches it says.
ModelFile model_from_tensors(const std::vector<Tensor>& tensors, const Rules& rules, const std::string& name);

}  // namespace muster::model
