# Installs build/ into a fresh prefix, then builds and runs this folder's project against it, and the example.
set(prefix ${work}/prefix)
file(REMOVE_RECURSE ${work})

function(run)
  execute_process(COMMAND ${ARGV} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

run(${CMAKE_COMMAND} --install ${build} --prefix ${prefix} --config ${config})
function(build_project source binary)
  run(${CMAKE_COMMAND} -S ${source} -B ${binary} -G ${generator}
    -DCMAKE_CXX_COMPILER=${compiler} -DCMAKE_BUILD_TYPE=${config} -DCMAKE_PREFIX_PATH=${prefix}
    # Users copy the example and compile it, and our headers, with their own warnings.
    "-DCMAKE_CXX_FLAGS=-Wall -Wextra -Werror" -DCMAKE_NO_SYSTEM_FROM_IMPORTED=ON)
  run(${CMAKE_COMMAND} --build ${binary} --config ${config})
endfunction()
build_project(${CMAKE_CURRENT_LIST_DIR} ${work}/build)

execute_process(COMMAND ${work}/build/consumer COMMAND_ERROR_IS_FATAL ANY OUTPUT_VARIABLE printed)
message(STATUS "consumer printed: ${printed}")
# Two ranks hold half each, so the one matrix travels to its owner and back.
if(NOT printed MATCHES "^plan [0-9a-f]+, 2 collectives\n$")
  message(FATAL_ERROR "expected 'plan HASH, 2 collectives'")
endif()

# The commands of docs/tutorial/cpp.md, in a folder with the names of a clone and a home of its own. The example learns:
# a character of that text has an entropy of 3.3 nats, or 2.45 for a reader who knows the one before it.
find_program(mpirun mpirun)
if(mpi AND mpirun)
  build_project(${source}/examples/cpp ${work}/example)
  file(MAKE_DIRECTORY ${work}/clone ${work}/home)
  foreach(name data examples)
    file(CREATE_LINK ${source}/${name} ${work}/clone/${name} SYMBOLIC)
  endforeach()
  file(CREATE_LINK ${build} ${work}/clone/build SYMBOLIC)
  execute_process(
    COMMAND ${CMAKE_COMMAND} -E env HOME=${work}/home CXX=${compiler} CMAKE_GENERATOR=${generator}
      OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
      sh examples/cpp/build.sh
    WORKING_DIRECTORY ${work}/clone COMMAND_ERROR_IS_FATAL ANY OUTPUT_VARIABLE printed)
  message(STATUS "example printed:\n${printed}")
  if(NOT printed MATCHES "step 300  loss ([0-9.]+)" OR CMAKE_MATCH_1 GREATER 2.4)
    message(FATAL_ERROR "expected a loss below 2.4 after 300 steps")
  endif()
endif()
