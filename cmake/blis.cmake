# The target muster_blis: BLIS, whose calls Muster keeps to one thread each, in any build of it. The archive first: the
# name of the shared library may lead to another build at run time (Debian's alternatives), and programs have BLAS of
# their own.
if(NOT TARGET muster_blis)
  find_package(Threads REQUIRED)
  find_library(MUSTER_BLIS NAMES libblis.a blis PATH_SUFFIXES blis-serial DOC "BLIS (Debian: libblis-serial-dev)")
  find_path(MUSTER_BLIS_INCLUDE blis.h PATH_SUFFIXES ${CMAKE_LIBRARY_ARCHITECTURE}/blis-serial blis-serial blis
    DOC "Folder of blis.h")
  if(NOT MUSTER_BLIS OR NOT MUSTER_BLIS_INCLUDE)
    message(FATAL_ERROR "muster: BLIS not found (Debian: libblis-serial-dev); set MUSTER_BLIS and MUSTER_BLIS_INCLUDE")
  endif()
  if(MUSTER_PORTABLE AND NOT MUSTER_BLIS MATCHES "\\.a$")
    message(FATAL_ERROR "muster: MUSTER_PORTABLE needs BLIS as an archive, not ${MUSTER_BLIS}")
  endif()
  add_library(muster_blis UNKNOWN IMPORTED)
  set_target_properties(muster_blis PROPERTIES IMPORTED_LOCATION ${MUSTER_BLIS}
    INTERFACE_INCLUDE_DIRECTORIES ${MUSTER_BLIS_INCLUDE} INTERFACE_LINK_LIBRARIES "Threads::Threads;m")
endif()
