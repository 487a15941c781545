# `find_package(muster)` for other projects.

include(CMakePackageConfigHelpers)
set(config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/muster)
get_target_property(library_type muster TYPE)

install(TARGETS muster EXPORT musterTargets)
install(DIRECTORY include/muster TYPE INCLUDE)
install(EXPORT musterTargets NAMESPACE muster:: DESTINATION ${config_dir})
configure_package_config_file(cmake/musterConfig.cmake.in ${PROJECT_BINARY_DIR}/musterConfig.cmake
  INSTALL_DESTINATION ${config_dir} NO_SET_AND_CHECK_MACRO NO_CHECK_REQUIRED_COMPONENTS_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/musterConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/musterConfig.cmake ${PROJECT_BINARY_DIR}/musterConfigVersion.cmake
  cmake/blis.cmake
  DESTINATION ${config_dir})
