# MPI, where the machine has it: MUSTER_MPI says so.

# The component that a project of C++ alone can find; of its bindings only those of C are used.
set(MPI_CXX_SKIP_MPICXX ON)
set(MUSTER_MPI OFF)
if(NOT MUSTER_PORTABLE)
  find_package(MPI COMPONENTS CXX)
  set(MUSTER_MPI ${MPI_CXX_FOUND})
endif()

# Keeps either src/comm/mpi/no_mpi.cpp or the rest of that folder.
function(muster_choose_mpi_sources list)
  if(MUSTER_MPI)
    list(FILTER ${list} EXCLUDE REGEX "/src/comm/mpi/no_mpi\\.cpp$")
  else()
    list(FILTER ${list} EXCLUDE REGEX "/src/comm/mpi/mpi[^/]*\\.cpp$")
  endif()
  set(${list} ${${list}} PARENT_SCOPE)
endfunction()
