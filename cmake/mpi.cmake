# MPI, where the machine has it: MUSTER_MPI says so.

# The component that a project of C++ alone can find; of its bindings only those of C are used.
set(MPI_CXX_SKIP_MPICXX ON)
set(MUSTER_MPI OFF)
if(NOT MUSTER_PORTABLE)
  find_package(MPI COMPONENTS CXX)
  set(MUSTER_MPI ${MPI_CXX_FOUND})
endif()
