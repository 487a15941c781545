# Installs build/ into a fresh prefix, then builds and runs this folder's project against it.
set(prefix ${work}/prefix)
file(REMOVE_RECURSE ${work})

function(run)
  execute_process(COMMAND ${ARGV} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

run(${CMAKE_COMMAND} --install ${build} --prefix ${prefix} --config ${config})
run(${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR} -B ${work}/build -G ${generator}
  -DCMAKE_CXX_COMPILER=${compiler} -DCMAKE_BUILD_TYPE=${config} -DCMAKE_PREFIX_PATH=${prefix})
run(${CMAKE_COMMAND} --build ${work}/build --config ${config})

execute_process(COMMAND ${work}/build/consumer COMMAND_ERROR_IS_FATAL ANY OUTPUT_VARIABLE printed)
message(STATUS "consumer printed: ${printed}")
# Two ranks hold half each, so the one matrix travels to its owner and back.
if(NOT printed MATCHES "^plan [0-9a-f]+, 2 collectives\n$")
  message(FATAL_ERROR "expected 'plan HASH, 2 collectives'")
endif()
