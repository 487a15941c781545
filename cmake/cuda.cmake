# CUDA, where the machine has nvcc: MUSTER_CUDA says so. Compiling needs no GPU, and the library none to load. Sanitizers
# are the host compiler's and not nvcc's.

include(CheckLanguage)
check_language(CUDA)
set(MUSTER_CUDA OFF)
if(CMAKE_CUDA_COMPILER AND NOT MUSTER_SANITIZE)
  # sm_90a has the instructions that product.cu is made of; the others get what does not need them.
  set(CMAKE_CUDA_ARCHITECTURES 80-real 89-real 90a-real 100-real CACHE STRING "What CUDA sources are compiled for")
  set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
  enable_language(CUDA)
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know that nvcc speaks it
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
  endif()
  find_package(CUDAToolkit REQUIRED)
  set(MUSTER_CUDA ON)
endif()

# Keeps either src/kernels/cuda/no_cuda.cpp or the rest of that folder.
function(muster_choose_cuda_sources list)
  if(MUSTER_CUDA)
    list(FILTER ${list} EXCLUDE REGEX "/src/kernels/cuda/no_cuda\\.cpp$")
  else()
    list(FILTER ${list} EXCLUDE REGEX "/src/kernels/cuda/(cuda|queue)[^/]*\\.cpp$")
  endif()
  set(${list} ${${list}} PARENT_SCOPE)
endfunction()

# Device code, as objects of their own: what the C++ compiler is told does not suit nvcc.
function(muster_add_cuda_kernels)
  if(NOT MUSTER_CUDA)
    return()
  endif()
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/kernels/cuda/*.cu)
  # The same bits as on the CPU: a product and a sum are rounded one by one there.
  set_source_files_properties(${PROJECT_SOURCE_DIR}/src/kernels/cuda/apply_polished.cu
    ${PROJECT_SOURCE_DIR}/src/kernels/cuda/elementwise.cu ${PROJECT_SOURCE_DIR}/src/kernels/cuda/values.cu
    PROPERTIES COMPILE_OPTIONS -fmad=false)
  add_library(muster_cuda OBJECT ${sources})
  target_include_directories(muster_cuda PRIVATE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
  set_target_properties(muster_cuda PROPERTIES POSITION_INDEPENDENT_CODE ON)
  if(MUSTER_WERROR)
    target_compile_options(muster_cuda PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>)
  endif()
  target_sources(muster PRIVATE $<TARGET_OBJECTS:muster_cuda>)
  target_include_directories(muster SYSTEM PRIVATE ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES})
  target_link_libraries(muster PRIVATE CUDA::cudart_static)
endfunction()
