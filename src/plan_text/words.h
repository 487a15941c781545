// The parts of a problem in words.
#pragma once

#include <string>
#include <string_view>

#include "muster/plan.h"

namespace muster::plan_text {

std::string_view word(Dtype dtype);
std::string_view word(Algorithm algorithm);
std::string_view word(Transport transport);

std::string shape_words(const Shape& shape);                       // "768×3072"
std::string mesh_words(const Mesh& mesh);                          // "fsdp=16,ep=8"
std::string layout_words(const Mesh& mesh, const Layout& layout);  // "fsdp: shard(0), tp: shard(1)"

// The number of ranks of the mesh that hold each element.
int64_t replica_count(const Mesh& mesh, const Layout& layout);

// Elements of all parameters; stops at 2^63 - 1.
int64_t total_elements(const Problem& problem);

}  // namespace muster::plan_text
