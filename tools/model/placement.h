// The layout of one parameter: which alternative of each axis holds, and in which order the axes split.
#pragma once

#include <string>

#include "model/fields.h"
#include "muster/layout.h"

namespace muster::model {

// Fails if an axis of the mesh has no placement. Placements and order may name axes that the mesh does not have.
Layout resolve_layout(const Fields& fields, const Shape& shape, const Mesh& mesh, const std::string& where);

}  // namespace muster::model
