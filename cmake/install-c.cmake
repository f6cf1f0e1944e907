# SPDX-License-Identifier: Apache-2.0
# The C interface as programs find it: farcall::c for CMake, farcall-c for pkg-config.
# Included by install.cmake, whose variables it uses.
set_target_properties(farcall-c PROPERTIES EXPORT_NAME c)
if(NOT TARGET farcall::c)
  add_library(farcall::c ALIAS farcall-c)
endif()

install(TARGETS farcall-c EXPORT farcall INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})

configure_file(cmake/farcall-c.pc.in farcall-c.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/farcall-c.pc DESTINATION ${pkgconfig_dir})
