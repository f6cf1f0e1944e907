# SPDX-License-Identifier: Apache-2.0
#
# farcall_room(<room> [USES <room>...] [HEADERS <name>...] [SOURCES <file>...])
#
# A room sees its own headers and those of the rooms that it uses, and of the rooms that those use;
# nothing else is in its search path. For that each room has an include directory of its own, in the
# build: <room>/ leads to the room's sources, and farcall/ to its headers in include/farcall. With
# SOURCES it is a target of objects, of which libraries are made; scripts/check_rooms.py reads these
# calls, too.
function(farcall_room room)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "USES;HEADERS;SOURCES")
  set(directory ${PROJECT_BINARY_DIR}/include/${room})
  file(MAKE_DIRECTORY ${directory}/farcall)
  file(CREATE_LINK ${CMAKE_CURRENT_SOURCE_DIR} ${directory}/${room} SYMBOLIC)
  foreach(header IN LISTS arg_HEADERS)
    file(CREATE_LINK ${PROJECT_SOURCE_DIR}/include/farcall/${header} ${directory}/farcall/${header}
      SYMBOLIC)
  endforeach()
  set(scope INTERFACE)
  if(arg_SOURCES)
    set(scope PUBLIC)
    add_library(farcall-room-${room} OBJECT ${arg_SOURCES})
    set_target_properties(farcall-room-${room} PROPERTIES POSITION_INDEPENDENT_CODE ON)
    farcall_with_probes(farcall-room-${room})
    farcall_use_precompiled(library farcall-room-${room})
  else()
    add_library(farcall-room-${room} INTERFACE)
  endif()
  target_include_directories(farcall-room-${room} ${scope} ${directory})
  list(TRANSFORM arg_USES PREPEND farcall-room-)
  target_link_libraries(farcall-room-${room} ${scope} ${arg_USES} Threads::Threads)
endfunction()

# Its sources have probes for tracers (see observe.hpp), where the header for those is there.
function(farcall_with_probes target)
  if(FARCALL_HAVE_SDT)
    target_compile_definitions(${target} PRIVATE FARCALL_HAVE_SDT)
  endif()
endfunction()

# Lets a target that is part of a room see what the room sees.
function(farcall_in_room target room)
  target_include_directories(${target} PRIVATE
    $<TARGET_PROPERTY:farcall-room-${room},INTERFACE_INCLUDE_DIRECTORIES>)
endfunction()
