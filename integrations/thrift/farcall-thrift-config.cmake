# SPDX-License-Identifier: Apache-2.0
include(CMakeFindDependencyMacro)
find_dependency(farcall)
find_dependency(PkgConfig)
pkg_check_modules(thrift REQUIRED IMPORTED_TARGET GLOBAL thrift)
include(${CMAKE_CURRENT_LIST_DIR}/farcall-thrift-targets.cmake)
