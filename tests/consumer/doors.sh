#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Installs a build to a fresh prefix, and builds and runs programs written for Solaris against it,
# with no more than what pkg-config says, by gcc, and by clang where it is installed; and by CMake.
# Usage: doors.sh BUILD_DIR
set -euo pipefail
# shellcheck source=tests/consumer/compilers.sh
. "$(dirname "$0")/compilers.sh"
build_dir=$1
sources=$(dirname "$(realpath "$0")")/doors

work=$(mktemp -d)
server=
trap '[[ -z $server ]] || kill "$server" 2>/dev/null; rm -rf "$work"' EXIT
cmake --install "$build_dir" --prefix "$work/prefix" >/dev/null

pc=$(find "$work/prefix" -name farcall-doors.pc)
export PKG_CONFIG_PATH=${pc%/*}
read -ra flags <<<"$(pkg-config --cflags --libs farcall-doors)"
read -ra cflags <<<"$(pkg-config --cflags farcall-doors)"
export LD_LIBRARY_PATH=${pc%/pkgconfig/*}
strict=(-pedantic -Wall -Wextra -Werror)

expect() { # WHAT EXPECTED ACTUAL
  if [[ $3 != "$2" ]]; then
    printf '%s printed:\n%s\n' "$1" "$3" >&2
    exit 1
  fi
}

try() { # C_COMPILER C++_COMPILER
  local cc=$1 cxx=$2 standard
  for standard in c89 c99 c11 c17 gnu17; do
    "$cc" "${strict[@]}" -std=$standard "$sources/headers.c" -o "$work/headers" "${flags[@]}"
    "$work/headers"
  done
  "$cc" "${strict[@]}" -std=gnu17 "$sources/strings.c" -o "$work/strings" "${flags[@]}"
  "$work/strings"
  for standard in c++98 c++11 c++14 c++17 c++20; do
    "$cxx" "${strict[@]}" -std=$standard -x c++ "$sources/headers.c" -o "$work/headers" \
      -x none "${flags[@]}"
    "$work/headers"
    "$cxx" "${strict[@]}" -std=$standard "$sources/program.cpp" -o "$work/program" "${flags[@]}"
    expect program HELLO "$("$work/program")"
  done

  "$cxx" "${strict[@]}" -std=c++20 "$sources/owner.cpp" -o "$work/owner" "${flags[@]}"
  expect owner 'called, owned' "$("$work/owner")"

  # Also with compiling and linking apart.
  "$cc" -c "$sources/server.c" -o "$work/server.o" "${cflags[@]}"
  "$cc" "$work/server.o" -o "$work/server" "${flags[@]}"
  "$cc" "$sources/client.c" -o "$work/client" "${flags[@]}"
  "$work/server" "$work/door" >"$work/server.out" &
  server=$!
  expect client $'attributes: unref\n12: 144\n6: 36\n0: 0' "$("$work/client" "$work/door")"
  wait "$server"
  server=
  expect server 'threads: made' "$(cat "$work/server.out")"
  echo "$cc: good"
}

by_each_compiler try

cmake -S "$sources" -B "$work/build" -D CMAKE_PREFIX_PATH="$work/prefix" >/dev/null
cmake --build "$work/build" >/dev/null
"$work/build/headers"
echo "find_package: good"
