# SPDX-License-Identifier: Apache-2.0
# farcall-rpc-interfaces: what the compiler of Thrift makes of rpc.thrift. Included once, by whoever
# comes first: the example or the tests.
include_guard(GLOBAL)
find_program(FARCALL_THRIFT thrift)
if(NOT FARCALL_THRIFT OR NOT TARGET farcall-thrift)
  return()
endif()

set(generated ${PROJECT_BINARY_DIR}/examples/rpc/generated)
file(MAKE_DIRECTORY ${generated})
set(made)
foreach(service example ping calculator timer)
  list(APPEND made ${generated}/${service}.cpp)
endforeach()
list(APPEND made ${generated}/rpc_types.cpp ${generated}/rpc_constants.cpp)
add_custom_command(OUTPUT ${made}
  COMMAND ${FARCALL_THRIFT} --gen cpp:no_skeleton,templates -out ${generated} ${CMAKE_CURRENT_LIST_DIR}/rpc.thrift
  DEPENDS ${CMAKE_CURRENT_LIST_DIR}/rpc.thrift)
add_custom_target(farcall-rpc-sources DEPENDS ${made}) # lint.sh wants no more than these
add_library(farcall-rpc-interfaces STATIC ${made})
set_target_properties(farcall-rpc-interfaces PROPERTIES COMPILE_OPTIONS "-w") # not ours to improve
target_include_directories(farcall-rpc-interfaces SYSTEM PUBLIC ${generated})
target_link_libraries(farcall-rpc-interfaces PUBLIC PkgConfig::thrift)
