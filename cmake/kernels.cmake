# Compiler options of the CPU kernels: the same loops for several instruction sets, with the same bits.

include(CheckCXXCompilerFlag)

function(muster_kernel_options)
  file(GLOB_RECURSE kernels ${PROJECT_SOURCE_DIR}/src/kernels/*.cpp)
  # Without FMA: only some machines have it, and it rounds a product and a sum as one.
  set_source_files_properties(${kernels} PROPERTIES COMPILE_OPTIONS -ffp-contract=off)
  # errno and trapping math would keep loops from being vectorised; turning them off changes no value.
  set(loops -ffp-contract=off -fno-math-errno -fno-trapping-math)
  set(portable "")
  set(avx2 -mavx2)
  set(avx512 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mprefer-vector-width=512)
  foreach(set IN ITEMS portable avx2 avx512)
    string(REPLACE ";" " " flags "${${set}}")
    check_cxx_compiler_flag("${flags}" MUSTER_HAS_${set})
    if(MUSTER_HAS_${set})
      set_source_files_properties(${PROJECT_SOURCE_DIR}/src/kernels/cpu/elementwise_${set}.cpp PROPERTIES
        COMPILE_OPTIONS "${loops};${${set}}")
    endif()
  endforeach()
endfunction()
