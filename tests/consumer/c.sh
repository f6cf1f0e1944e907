#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Installs a build to a fresh prefix, and builds and runs the examples of the C interface against it,
# with no more than what pkg-config says, by gcc, and by clang where it is installed; and by CMake.
# Usage: c.sh BUILD_DIR
set -euo pipefail
build_dir=$1
here=$(dirname "$(realpath "$0")")
examples=$here/../../examples/c

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cmake --install "$build_dir" --prefix "$work/prefix" >/dev/null

pc=$(find "$work/prefix" -name farcall-c.pc)
export PKG_CONFIG_PATH=${pc%/*}
read -ra flags <<<"$(pkg-config --cflags --libs farcall-c)"
export LD_LIBRARY_PATH=${pc%/pkgconfig/*}
strict=(-pedantic -Wall -Wextra -Werror)

expect() { # WHAT EXPECTED ACTUAL
  if [[ $3 != "$2" ]]; then
    printf '%s printed:\n%s\n' "$1" "$3" >&2
    exit 1
  fi
}

try() { # COMPILER
  local standard
  for standard in c99 c11 c17 gnu17; do
    "$1" "${strict[@]}" -D_GNU_SOURCE -std=$standard "$examples/pipe.c" -o "$work/pipe" "${flags[@]}"
    expect pipe $'HELLO\nTHERE' "$("$work/pipe")"
    "$1" "${strict[@]}" -D_GNU_SOURCE -std=$standard "$examples/broadcast.c" -o "$work/broadcast" \
      "${flags[@]}"
    "$1" "${strict[@]}" -D_GNU_SOURCE -std=$standard "$examples/call.c" -o "$work/call" "${flags[@]}"
    expect call HELLO "$("$work/call")"
    expect broadcast $'a worker: 10\na worker: 10\na worker: 10' "$("$work/broadcast")"
  done
  for standard in c++11 c++20; do # the header is C++, too
    echo '#include <farcall/farcall.h>
int main() { return farcall_version() == nullptr; }' |
      "$1" "${strict[@]}" -std=$standard -x c++ - -o "$work/version" "${flags[@]}"
    "$work/version"
  done
  echo "$1: good"
}

try gcc
clang=$(command -v clang || find /usr/lib/llvm-*/bin -name clang 2>/dev/null | tail -n 1)
if [[ -n $clang ]]; then
  try "$clang"
else
  echo "clang: not installed, not tried"
fi

cmake -S "$here/c" -B "$work/build" -D CMAKE_PREFIX_PATH="$work/prefix" -D EXAMPLES="$examples" >/dev/null
cmake --build "$work/build" >/dev/null
expect pipe $'HELLO\nTHERE' "$("$work/build/pipe")"
echo "find_package: good"
