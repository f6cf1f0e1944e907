#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# What each way between two processes costs on this machine, in about two minutes: the limits, the
# rings, what people use instead. Leaves build/demo/compare.json and build/demo/compare.png.
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."

scripts/setup.sh build plot
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# Quiet while it goes well: what the demo is about comes after it.
if ! { cmake --preset release && cmake --build --preset release --target farcall-tool; } \
  >"$log" 2>&1 </dev/null; then
  tail -n 40 "$log" >&2
  exit 1
fi

mkdir -p build/demo
build/release/farcall compare --quick --rows main --sizes 64,4K,64K,1M --placement two-cpus,one-cpu \
  --json build/demo/compare.json --plot build/demo/compare.png
echo
echo "The figures are in build/demo/compare.json, as a picture in build/demo/compare.png;"
echo "build/release/farcall compare --help tells how to measure more."
