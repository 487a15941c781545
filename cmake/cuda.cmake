# CUDA, where the machine has nvcc: MUSTER_CUDA says so afterwards. Compiling needs no GPU, and the library none to load.
# Sanitizers are the host compiler's and not nvcc's.

set(MUSTER_CUDA AUTO CACHE STRING "Compile for CUDA: AUTO (if nvcc is found), ON or OFF")
set(MUSTER_CUDA_ARCHITECTURES native CACHE STRING
  "What CUDA sources are compiled for: native (this machine's GPUs, or 90a if it has none), all, or as CMAKE_CUDA_ARCHITECTURES")
# The GEMM needs the instructions of sm_90a; the other architectures get everything else.
set(muster_all_architectures 80-real 89-real 90a-real 100-real)

# Finds nvcc where its installer puts it, too: CMake looks at CUDACXX and PATH alone.
function(muster_find_nvcc)
  find_program(MUSTER_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin
    DOC "NVIDIA's CUDA compiler")
  if(MUSTER_NVCC AND NOT DEFINED ENV{CUDACXX} AND NOT DEFINED CMAKE_CUDA_COMPILER)
    set(ENV{CUDACXX} ${MUSTER_NVCC})
  endif()
endfunction()

# The architectures of this machine's GPUs, as nvidia-smi reports them; 90a if there is none.
function(muster_native_architectures variable)
  find_program(MUSTER_NVIDIA_SMI nvidia-smi DOC "Lists this machine's GPUs")
  set(found "")
  if(MUSTER_NVIDIA_SMI)
    execute_process(COMMAND ${MUSTER_NVIDIA_SMI} --query-gpu=compute_cap --format=csv,noheader
      RESULT_VARIABLE result OUTPUT_VARIABLE text ERROR_QUIET TIMEOUT 60)
    if(result EQUAL 0)
      string(REGEX MATCHALL "[0-9]+\\.[0-9]" found "${text}")
    endif()
  endif()
  if(NOT found)
    set(found 9.0)
  endif()
  list(REMOVE_DUPLICATES found)
  list(TRANSFORM found REPLACE "^9\\.0$" "9.0a")
  list(TRANSFORM found REPLACE "\\." "")
  list(TRANSFORM found APPEND -real)
  set(${variable} ${found} PARENT_SCOPE)
endfunction()

# CMake found no CUDA compiler that works. A wheel without CUDA although nvcc is there would be a surprise: an error.
function(muster_report_no_compiler)
  set(nvcc ${MUSTER_NVCC})
  if(DEFINED ENV{CUDACXX})
    set(nvcc $ENV{CUDACXX})
  endif()
  if(nvcc)
    set(problem "${nvcc} does not work with ${CMAKE_CXX_COMPILER}. Choose another host compiler with the \
environment variable CUDAHOSTCXX, or leave CUDA out with MUSTER_CUDA=OFF")
    set(fatal ${SKBUILD})
  elseif(NOT muster_requested_cuda STREQUAL AUTO)
    set(problem "MUSTER_CUDA=${muster_requested_cuda}, and there is no nvcc. Put it on PATH or set CUDACXX")
  else()
    return()
  endif()
  if(fatal OR NOT muster_requested_cuda STREQUAL AUTO)
    message(FATAL_ERROR "muster: ${problem}")
  endif()
  message(NOTICE "muster: ${problem}")
endfunction()

set(muster_requested_cuda ${MUSTER_CUDA})
set(MUSTER_CUDA OFF)
if(muster_requested_cuda AND NOT MUSTER_SANITIZE)
  muster_find_nvcc()
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    set(MUSTER_CUDA ON)
  else()
    muster_report_no_compiler()
  endif()
endif()

if(MUSTER_CUDA)
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES AND NOT DEFINED ENV{CUDAARCHS})
    set(CMAKE_CUDA_ARCHITECTURES ${MUSTER_CUDA_ARCHITECTURES})
    if(MUSTER_CUDA_ARCHITECTURES STREQUAL all)
      set(CMAKE_CUDA_ARCHITECTURES ${muster_all_architectures})
    elseif(MUSTER_CUDA_ARCHITECTURES STREQUAL native)
      muster_native_architectures(CMAKE_CUDA_ARCHITECTURES)
    endif()
  endif()
  set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
  enable_language(CUDA)
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc speaks it
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
  endif()
  find_package(CUDAToolkit REQUIRED)
endif()

# Device code, as objects of their own: what the C++ compiler is told does not suit nvcc.
function(muster_add_cuda_kernels)
  if(NOT MUSTER_CUDA)
    return()
  endif()
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/kernels/cuda/*.cu)
  # Without FMA, for the same bits as on the CPU, which rounds a product and a sum separately.
  set_source_files_properties(${PROJECT_SOURCE_DIR}/src/kernels/cuda/newton_schulz/apply_orthogonalized.cu
    ${PROJECT_SOURCE_DIR}/src/kernels/cuda/elementwise/elementwise.cu ${PROJECT_SOURCE_DIR}/src/kernels/cuda/elementwise/gradient_checks.cu
    PROPERTIES COMPILE_OPTIONS -fmad=false)
  add_library(muster_cuda OBJECT ${sources})
  target_include_directories(muster_cuda PRIVATE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src ${PROJECT_BINARY_DIR}/generated)
  set_target_properties(muster_cuda PROPERTIES POSITION_INDEPENDENT_CODE ON)
  if(MUSTER_WERROR)
    target_compile_options(muster_cuda PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>)
  endif()
  target_sources(muster PRIVATE $<TARGET_OBJECTS:muster_cuda>)
  target_include_directories(muster SYSTEM PRIVATE ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES})
  target_link_libraries(muster PRIVATE CUDA::cudart_static)
endfunction()
