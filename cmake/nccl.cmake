# NCCL, where nvcc is: MUSTER_NCCL says so. Only its header is needed, the library is opened at run time. The machine's
# own comes first, then NVIDIA's package on PyPI; without either Muster is built without.

set(MUSTER_NCCL OFF)

function(muster_find_header variable header package)
  set(folder ${PROJECT_BINARY_DIR}/cuda_packages)
  set(hints ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES} ${folder}/include)
  find_path(${variable} ${header} HINTS ${hints} DOC "Folder of ${header}")
  find_package(Python3 QUIET COMPONENTS Interpreter)
  if(NOT ${variable} AND Python3_FOUND)
    message(STATUS "Fetching ${header} (${package})")
    execute_process(COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/scripts/cuda_packages ${folder} ${package}
      RESULT_VARIABLE result OUTPUT_QUIET ERROR_VARIABLE error ERROR_STRIP_TRAILING_WHITESPACE TIMEOUT 300)
    if(NOT result EQUAL 0)
      message(STATUS "${header} not found, nor fetched: ${error}")
    endif()
    find_path(${variable} ${header} HINTS ${hints} DOC "Folder of ${header}")
  endif()
endfunction()

if(MUSTER_CUDA)
  muster_find_header(MUSTER_NCCL_INCLUDE nccl.h nvidia-nccl-cu13==2.28.*)
  if(MUSTER_NCCL_INCLUDE)
    set(MUSTER_NCCL ON)
  endif()
endif()
if(NOT MUSTER_CUDA)
  message(NOTICE "cuda: not compiled")
elseif(NOT MUSTER_NCCL)
  message(NOTICE "cuda: compiled for ${CMAKE_CUDA_ARCHITECTURES}, without NCCL")
else()
  message(NOTICE "cuda: compiled for ${CMAKE_CUDA_ARCHITECTURES}, with NCCL")
endif()

# Keeps either src/comm/nccl/no_nccl.cpp or the rest of that folder.
function(muster_choose_nccl_sources list)
  if(MUSTER_NCCL)
    list(FILTER ${list} EXCLUDE REGEX "/src/comm/nccl/no_nccl\\.cpp$")
  else()
    list(FILTER ${list} EXCLUDE REGEX "/src/comm/nccl/nccl[^/]*\\.cpp$")
  endif()
  set(${list} ${${list}} PARENT_SCOPE)
endfunction()
