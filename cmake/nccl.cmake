# NCCL, where CUDA is compiled: MUSTER_NCCL says so afterwards. Building needs none of its files, and the library is
# opened at run time (src/comm/nccl/nccl_api.h).

option(MUSTER_NCCL "Communicate over NCCL, where CUDA is compiled" ON)
if(NOT MUSTER_CUDA)
  set(MUSTER_NCCL OFF)
endif()
