#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Compiles each public header without a warning, in every standard that it is for, by gcc, and by
# clang where it is installed.
# Usage: headers.sh
set -euo pipefail
# shellcheck source=tests/consumer/compilers.sh
. "$(dirname "$0")/compilers.sh"
include=$(realpath "$(dirname "$0")/../../include")
strict=(-pedantic -Wall -Wextra -Werror -fsyntax-only)

compile() { # LANGUAGE STANDARD COMPILER HEADER...
  local language=$1 standard=$2 compiler=$3
  shift 3
  printf '#include <farcall/%s>\n' "$@" |
    "$compiler" "${strict[@]}" -std="$standard" -x "$language" -I "$include" -I "$include/farcall/compat" -
}

mapfile -t c < <(cd "$include/farcall" && printf '%s\n' *.h)
mapfile -t cxx < <(cd "$include/farcall" && find . -name '*.hpp' -printf '%P\n' | sort)
[[ ${#c[@]} -gt 1 && ${#cxx[@]} -gt 1 ]]

try() { # C_COMPILER C++_COMPILER
  local header standard
  for header in "${c[@]}"; do
    for standard in c89 c99 c11 c17 gnu17; do compile c $standard "$1" "$header"; done
    for standard in c++98 c++11 c++20; do compile c++ $standard "$2" "$header"; done
  done
  compile c++ c++20 "$2" "${cxx[@]}"
  echo "$1: good"
}

by_each_compiler try
