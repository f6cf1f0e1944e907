#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Compiles includes as a room does: includes.sh COMPILER DIRECTORIES FINDS MISSES, lists with ";".
set -euo pipefail
compiler=$1
IFS=';' read -ra directories <<<"$2"
IFS=';' read -ra finds <<<"$3"
IFS=';' read -ra misses <<<"$4"

# compile HEADER...: one file that includes them all.
compile() {
  printf '#include "%s"\n' "$@" |
    "$compiler" -std=c++20 -fsyntax-only -x c++ "${directories[@]/#/-I}" -isystem "$compat" - 2>&1
}
# What a door's headers include as programs of Solaris do.
compat=$PWD/../../include/farcall/compat

failed=0
if ! output=$(compile "${finds[@]}"); then
  echo "does not find all of ${finds[*]}: $output"
  failed=1
fi
for header in "${misses[@]}"; do
  if output=$(compile "$header"); then
    echo "finds $header"
    failed=1
  elif [[ $output != *"$header: No such file"* && $output != *"'$header' file not found"* ]]; then
    echo "fails for another reason: $output"
    failed=1
  fi
done
exit $failed
