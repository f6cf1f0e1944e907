# SPDX-License-Identifier: Apache-2.0
# Messages as programs find them: farcall::messages for CMake, farcall-messages for pkg-config.
# Included by install.cmake, whose variables it uses.
set_target_properties(farcall-messages PROPERTIES EXPORT_NAME messages)
if(NOT TARGET farcall::messages)
  add_library(farcall::messages ALIAS farcall-messages)
endif()

install(TARGETS farcall-messages EXPORT farcall INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})

configure_file(cmake/farcall-messages.pc.in farcall-messages.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/farcall-messages.pc DESTINATION ${pkgconfig_dir})
