#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The ABI of the C library as it is kept in farcall-c.abi, for x86-64: what programs see, and nothing of
# what opaque types are made of.
# Usage: abi.sh dump|compare LIBRARY [DUMP]
# dump: keeps that of the library, after a change that is meant. compare: says how the library differs
# from what is kept, and fails if it does.
set -euo pipefail
how=$1 library=$2
here=$(dirname "$(realpath "$0")")
kept=${3:-$here/farcall-c.abi}

abi() { # OUTPUT
  abidw --suppressions "$here/farcall-c.abignore" --exported-interfaces-only --no-corpus-path \
    --no-comp-dir-path --no-show-locs --no-elf-needed --out-file "$1" "$library"
}

case $how in
  dump) abi "$kept" ;;
  compare)
    now=$(mktemp --suffix=.abi)
    trap 'rm -f "$now"' EXIT
    abi "$now"
    abidiff "$kept" "$now"
    ;;
  *)
    echo "abi.sh: dump or compare" >&2
    exit 2
    ;;
esac
