#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Installs a build to a fresh prefix, and builds and runs clients and servers of messages against it,
# with no more than what pkg-config says, by gcc, and by clang where it is installed; and by CMake,
# with Thrift where the build has its transports.
# Usage: messages.sh BUILD_DIR
set -euo pipefail
# shellcheck source=tests/consumer/compilers.sh
. "$(dirname "$0")/compilers.sh"
build_dir=$1
sources=$(dirname "$(realpath "$0")")/messages

work=$(mktemp -d)
server=
trap '[[ -z $server ]] || kill "$server" 2>/dev/null; rm -rf "$work"' EXIT
cmake --install "$build_dir" --prefix "$work/prefix" >/dev/null

pc=$(find "$work/prefix" -name farcall-messages.pc)
export PKG_CONFIG_PATH=${pc%/*}
read -ra flags <<<"$(pkg-config --cflags --libs farcall-messages)"
export LD_LIBRARY_PATH=${pc%/pkgconfig/*}
export FARCALL_ENGINE=shared
strict=(-pedantic -Wall -Wextra -Werror)

expect() { # WHAT EXPECTED ACTUAL
  if [[ $3 != "$2" ]]; then
    printf '%s printed:\n%s\n' "$1" "$3" >&2
    exit 1
  fi
}

# A server that ends after one message, and its client.
pair() { # SERVER CLIENT
  local name=consumer-$$-$RANDOM
  "$1" "$name" &
  server=$!
  expect client HELLO "$("$2" "$name" hello)"
  wait "$server"
  server=
}

try() { # C_COMPILER C++_COMPILER
  local cc=$1 cxx=$2 standard
  for standard in c99 c11 c17 gnu17; do
    "$cc" "${strict[@]}" -std=$standard "$sources/server.c" -o "$work/server" "${flags[@]}"
    "$cc" "${strict[@]}" -std=$standard "$sources/client.c" -o "$work/client" "${flags[@]}"
    pair "$work/server" "$work/client"
  done
  for standard in c++11 c++14 c++17 c++20; do
    "$cxx" "${strict[@]}" -std=$standard -x c++ "$sources/client.c" -o "$work/client" \
      -x none "${flags[@]}"
    pair "$work/server" "$work/client"
  done
  "$cxx" "${strict[@]}" -std=c++20 "$sources/owner.cpp" -o "$work/owner" "${flags[@]}"
  expect owner 'HELLO, 3 pulses' "$("$work/owner")"
  echo "$cc: good"
}

by_each_compiler try

cmake -S "$sources" -B "$work/build" -D CMAKE_PREFIX_PATH="$work/prefix" >/dev/null
cmake --build "$work/build" >/dev/null
pair "$work/build/server" "$work/build/client"
echo "find_package: good"

if [[ -n $(find "$work/prefix" -name farcall-thrift-config.cmake) ]]; then
  cmake -S "$sources/thrift" -B "$work/thrift" -D CMAKE_PREFIX_PATH="$work/prefix" >/dev/null
  cmake --build "$work/thrift" >/dev/null
  expect thrift 'hello' "$("$work/thrift/transport")"
  echo "farcall-thrift: good"
else
  echo "farcall-thrift: not installed, not tried"
fi
