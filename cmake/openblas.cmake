# The target muster_openblas: OpenBLAS built without threads of its own, because Muster calls it from many. The archive
# first: the name of the shared library may lead to a threaded build at run time (Debian's alternatives).
if(NOT TARGET muster_openblas)
  find_package(Threads REQUIRED)
  find_library(MUSTER_OPENBLAS NAMES libopenblas.a openblas PATH_SUFFIXES openblas-serial
    DOC "OpenBLAS without threads (Debian: libopenblas-serial-dev)")
  if(NOT MUSTER_OPENBLAS)
    message(FATAL_ERROR "muster: OpenBLAS not found (Debian: libopenblas-serial-dev); set MUSTER_OPENBLAS to its path")
  endif()
  add_library(muster_openblas UNKNOWN IMPORTED)
  set_target_properties(muster_openblas PROPERTIES
    IMPORTED_LOCATION ${MUSTER_OPENBLAS} INTERFACE_LINK_LIBRARIES "Threads::Threads;m")
endif()
