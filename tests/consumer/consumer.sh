#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Installs a build to a fresh prefix, builds the consumer against it and runs it.
# Usage: consumer.sh find_package|pkg-config BUILD_DIR C++_COMPILER
set -euo pipefail
way=$1 build_dir=$2 compiler=$3
source_dir=$(dirname "$(realpath "$0")")

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
prefix=$work/prefix
cmake --install "$build_dir" --prefix "$prefix" >/dev/null

case $way in
  find_package)
    cmake -S "$source_dir" -B "$work/build" -D CMAKE_CXX_COMPILER="$compiler" \
      -D CMAKE_PREFIX_PATH="$prefix" >/dev/null
    cmake --build "$work/build" >/dev/null
    consumer=$work/build/consumer
    ;;
  pkg-config)
    pc=$(find "$prefix" -name farcall.pc)
    export PKG_CONFIG_PATH=${pc%/*}
    read -ra flags <<<"$(pkg-config --cflags --libs farcall)"
    consumer=$work/consumer
    "$compiler" -std=c++20 "$source_dir/consumer.cpp" -o "$consumer" "${flags[@]}"
    # A shared library in a prefix that the loader does not know.
    export LD_LIBRARY_PATH=${pc%/pkgconfig/*}
    ;;
esac

output=$("$consumer")
if [[ $output != "open /x: ENOENT: No such file or directory" ]]; then
  echo "the consumer printed: $output" >&2
  exit 1
fi
