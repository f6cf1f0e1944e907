# SPDX-License-Identifier: Apache-2.0
# What an installation holds: the library, its headers, both ways to find it, the tool, the docs.
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/farcall)
set(pkgconfig_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

install(TARGETS farcall EXPORT farcall)
install(DIRECTORY include/ TYPE INCLUDE)
install(EXPORT farcall NAMESPACE farcall:: FILE farcall-targets.cmake DESTINATION ${package_dir})
if(TARGET farcall-tool)
  install(TARGETS farcall-tool)
endif()

write_basic_package_version_file(${PROJECT_BINARY_DIR}/farcall-config-version.cmake
  COMPATIBILITY SameMinorVersion) # as SOVERSION
install(FILES cmake/farcall-config.cmake ${PROJECT_BINARY_DIR}/farcall-config-version.cmake
  DESTINATION ${package_dir})

# The prefix is found from where farcall.pc lies: `cmake --install --prefix` may choose any.
cmake_path(RELATIVE_PATH CMAKE_INSTALL_PREFIX
  BASE_DIRECTORY ${CMAKE_INSTALL_PREFIX}/${pkgconfig_dir} OUTPUT_VARIABLE prefix_from_pc)
configure_file(cmake/farcall.pc.in farcall.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/farcall.pc DESTINATION ${pkgconfig_dir})
if(TARGET farcall-doors)
  include(cmake/install-doors.cmake)
endif()
if(TARGET farcall-messages)
  include(cmake/install-messages.cmake)
endif()
include(cmake/install-c.cmake)

install(DIRECTORY docs/man/ TYPE MAN OPTIONAL FILES_MATCHING PATTERN "man[1347]/*.[1347]")
install(DIRECTORY docs/ TYPE DOC OPTIONAL FILES_MATCHING PATTERN "*.md" PATTERN man EXCLUDE)
install(FILES README.md CHANGELOG.md LICENSE TYPE DOC OPTIONAL)
