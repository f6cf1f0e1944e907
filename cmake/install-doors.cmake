# SPDX-License-Identifier: Apache-2.0
# Doors as programs find them: farcall::doors for CMake, farcall-doors for pkg-config, and without
# anything in front of the C library farcall::doors-plain and farcall-doors-plain, also as an
# archive. Included by install.cmake, whose variables it uses. Programs for Solaris include <door.h>,
# so its folder is searched; others include <farcall/doors.h>.
set_target_properties(farcall-doors PROPERTIES EXPORT_NAME doors)
set_target_properties(farcall-doors-plain PROPERTIES EXPORT_NAME doors-plain)
set_target_properties(farcall-doors-plain-static PROPERTIES EXPORT_NAME doors-plain-static)
foreach(name doors doors-plain doors-plain-static)
  if(NOT TARGET farcall::${name})
    add_library(farcall::${name} ALIAS farcall-${name})
  endif()
endforeach()

install(TARGETS farcall-doors EXPORT farcall
  INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/farcall/compat ${CMAKE_INSTALL_INCLUDEDIR})
install(TARGETS farcall-doors-plain farcall-doors-plain-static EXPORT farcall
  INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})

# Makefiles for Solaris say -ldoor.
file(CREATE_LINK libfarcall-doors.so ${PROJECT_BINARY_DIR}/libdoor.so SYMBOLIC)
install(FILES ${PROJECT_BINARY_DIR}/libdoor.so DESTINATION ${CMAKE_INSTALL_LIBDIR})

foreach(name farcall-doors farcall-doors-plain)
  configure_file(cmake/${name}.pc.in ${name}.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/${name}.pc DESTINATION ${pkgconfig_dir})
endforeach()
