#include "engine/step/recorder.h"

namespace muster {

std::string_view name(Stage stage) {
  constexpr std::string_view kNames[kStages] = {"control",   "pack",        "wait in", "assemble", "orthogonalize",
                                                "normalize", "elementwise", "stage",   "wait out", "apply"};
  return kNames[static_cast<size_t>(stage)];
}

}  // namespace muster
