# Embeds every presets/*.json into the library, as src/model/preset_data.h declares it. Included by the build to define
# the step; run as a script (cmake -P) to carry it out.

function(muster_embed_presets output)
  file(GLOB presets CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/presets/*.json)
  set(script ${PROJECT_SOURCE_DIR}/cmake/presets.cmake)
  add_custom_command(OUTPUT ${output}
    COMMAND ${CMAKE_COMMAND} "-Dpresets=${presets}" -Doutput=${output} -P ${script}
    DEPENDS ${presets} ${script}
    COMMENT "Embedding presets" VERBATIM)
endfunction()

if(NOT CMAKE_SCRIPT_MODE_FILE)
  return()
endif()

set(arrays "")
set(entries "")
list(LENGTH presets count)
set(index 0)
foreach(preset IN LISTS presets)
  file(READ ${preset} text)
  string(JSON type ERROR_VARIABLE error TYPE "${text}")
  if(NOT type STREQUAL OBJECT)
    message(FATAL_ERROR "${preset}: not a JSON object: ${error}")
  endif()
  # Characters one by one: no compiler's limit on string literals, and nothing to escape.
  file(READ ${preset} bytes HEX)
  string(REGEX REPLACE "(..............................)" "\\1\n" bytes "${bytes}")
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "'\\\\x\\1'," bytes "${bytes}")
  get_filename_component(name ${preset} NAME_WLE)
  string(APPEND arrays "constexpr char kText${index}[] = {\n${bytes}};\n\n")
  string(APPEND entries "    {\"${name}\", {kText${index}, sizeof kText${index}}},\n")
  math(EXPR index "${index} + 1")
endforeach()

file(WRITE ${output} "// Generated from presets/*.json by cmake/presets.cmake.
#include \"model/preset_data.h\"

#include <array>

namespace muster::model {
namespace {

${arrays}constexpr std::array<PresetText, ${count}> kPresets{{
${entries}}};

}  // namespace

std::span<const PresetText> preset_texts() { return kPresets; }

}  // namespace muster::model
")
