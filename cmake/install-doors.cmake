# SPDX-License-Identifier: Apache-2.0
# Doors as programs find them: farcall::doors for CMake, farcall-doors for pkg-config. Included by
# install.cmake, whose variables it uses. Programs include <door.h>, so its folder is searched.
set_target_properties(farcall-doors PROPERTIES EXPORT_NAME doors)
if(NOT TARGET farcall::doors)
  add_library(farcall::doors ALIAS farcall-doors)
endif()

install(TARGETS farcall-doors EXPORT farcall
  INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/farcall/compat ${CMAKE_INSTALL_INCLUDEDIR})

configure_file(cmake/farcall-doors.pc.in farcall-doors.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/farcall-doors.pc DESTINATION ${pkgconfig_dir})
