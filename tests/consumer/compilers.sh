# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
#
# Read by its neighbours.

# by_each_compiler FUNCTION: FUNCTION C_COMPILER C++_COMPILER, of gcc, and of clang where it is installed.
by_each_compiler() {
  local clang
  "$1" gcc g++
  clang=$(command -v clang || find /usr/lib/llvm-*/bin -name clang 2>/dev/null | tail -n 1)
  if [[ -n $clang ]]; then
    "$1" "$clang" "$clang++"
  else
    echo "clang: not installed, not tried"
  fi
}
