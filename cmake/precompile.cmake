# SPDX-License-Identifier: Apache-2.0
#
# Half of what compiling costs is reading headers of others, again for each file; precompiled, they
# are read once. Only headers of others are: a room must not see what it does not include of ours.
# A file still includes what it uses: scripts/lint.sh reads all without precompiled headers, as do
# those who set CMAKE_DISABLE_PRECOMPILE_HEADERS.

# farcall_add_precompiled(<set> LIBRARIES <target>... HEADERS <header>...)
#
# Headers for targets that are compiled alike and link the same libraries of others. The same options
# for optimisation and debugging are a must: where they differ, gcc 12 crashes at times.
function(farcall_add_precompiled set)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "LIBRARIES;HEADERS")
  set(source ${CMAKE_CURRENT_BINARY_DIR}/precompiled-${set}.cpp)
  file(CONFIGURE OUTPUT ${source} CONTENT "// Only its precompiled headers are used.\n")
  add_library(farcall-precompiled-${set} OBJECT ${source})
  target_link_libraries(farcall-precompiled-${set} PRIVATE ${arg_LIBRARIES})
  target_precompile_headers(farcall-precompiled-${set} PRIVATE ${arg_HEADERS})
endfunction()

# farcall_use_precompiled(<set> <target>...)
function(farcall_use_precompiled set)
  # Others want the very same definitions as well, of names that no header of these knows.
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    return()
  endif()
  foreach(target IN LISTS ARGN)
    target_precompile_headers(${target} REUSE_FROM farcall-precompiled-${set})
  endforeach()
endfunction()

# Only what many files include: all of it is loaded again for every file.
set(FARCALL_STANDARD_HEADERS
  <algorithm> <array> <atomic> <cerrno> <chrono> <condition_variable> <cstdint> <cstdio> <cstdlib>
  <cstring> <functional> <map> <memory> <mutex> <optional> <span> <string> <string_view>
  <system_error> <thread> <unordered_map> <utility> <vector>)

# The libraries, as code that can be placed anywhere.
farcall_add_precompiled(library LIBRARIES Threads::Threads HEADERS ${FARCALL_STANDARD_HEADERS})
set_target_properties(farcall-precompiled-library PROPERTIES POSITION_INDEPENDENT_CODE ON)

# For code whose own speed nobody measures: most tests, and what is made of large libraries of
# templates. It keeps its lines for backtraces, not its variables. Debug builds stay as they are. With
# sanitizers it is not optimised, which takes half of the time to compile.
set(FARCALL_CHEAP_OPTIONS)
if(CMAKE_BUILD_TYPE MATCHES "^Rel")
  set(FARCALL_CHEAP_OPTIONS -Og -g1)
elseif(CMAKE_BUILD_TYPE STREQUAL None) # with the options of whoever makes packages
  set(FARCALL_CHEAP_OPTIONS -Og)
elseif(FARCALL_SANITIZE)
  set(FARCALL_CHEAP_OPTIONS -g1 -O0)
endif()

# farcall_compile_cheaply(<target> <source>...): without precompiled headers, whose options are others.
function(farcall_compile_cheaply target)
  set_source_files_properties(${ARGN} TARGET_DIRECTORY ${target}
    PROPERTIES COMPILE_OPTIONS "${FARCALL_CHEAP_OPTIONS}" SKIP_PRECOMPILE_HEADERS ON)
endfunction()

# What is around the libraries is not optimised with a sanitizer, either: who waits there waits for the
# compiler.
set(FARCALL_AROUND_OPTIONS)
if(FARCALL_SANITIZE)
  set(FARCALL_AROUND_OPTIONS -O0)
endif()

# farcall_compile_apart(<target> <source>...): not together with others by CMAKE_UNITY_BUILD, for their
# own names are those of others.
function(farcall_compile_apart target)
  set_source_files_properties(${ARGN} TARGET_DIRECTORY ${target}
    PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()
