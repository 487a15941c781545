# NCCL, where CUDA is compiled: MUSTER_NCCL says so afterwards. Building needs none of its files, and the library is
# opened at run time (src/comm/nccl/nccl_api.h).

option(MUSTER_NCCL "Communicate over NCCL, where CUDA is compiled" ON)
if(NOT MUSTER_CUDA)
  set(MUSTER_NCCL OFF)
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
