# Compiler launcher, sanitizers and warnings.

find_program(CCACHE ccache)
if(CCACHE AND PROJECT_IS_TOP_LEVEL AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
endif()

if(MUSTER_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES Clang)
    message(FATAL_ERROR "MUSTER_FUZZ needs clang, not ${CMAKE_CXX_COMPILER_ID}: use the fuzz preset")
  endif()
  set(MUSTER_SANITIZE address,undefined)
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()
if(MUSTER_SANITIZE)
  add_compile_options(-fsanitize=${MUSTER_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer -g)
  add_link_options(-fsanitize=${MUSTER_SANITIZE})
endif()

# Warnings are ours alone: never exported.
function(muster_warnings target)
  # Clang counts sign conversions among conversions, g++ does not.
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion)
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    # g++ 12 reports `"literal" + string` as overlapping copies (GCC bug 105651).
    target_compile_options(${target} PRIVATE -Wno-restrict)
  endif()
  if(MUSTER_WERROR)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
endfunction()
