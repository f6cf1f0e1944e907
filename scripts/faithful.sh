#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Whether programs of others notice the preload library: CPython's own tests with it and without,
# and servers and clients of all kinds in every mix of accelerated and plain ends, some for longer.
# Usage: scripts/faithful.sh [SECONDS]    how long each program is kept busy (10)
# Takes a quarter of an hour, and leaves what failed in build/faithful/.
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."

# What is measured or tested on this machine is not to go through a proxy.
export no_proxy="${no_proxy:+$no_proxy,}127.0.0.1,::1,localhost"

seconds=${1:-10}
scripts/setup.sh build programs
cmake --preset release >/dev/null
cmake --build --preset release --target farcall-tool farcall-preload

out=build/faithful
mkdir -p "$out"
failed=0
programs=tests/preload/programs
/usr/bin/python3 "$programs/run.py" --farcall build/release/farcall --seconds "$seconds" \
  --mix plain,both,server,client | tee "$out/programs.log" || failed=1
/usr/bin/python3 "$programs/cpython.py" --farcall build/release/farcall --keep "$out/cpython" |
  tee "$out/cpython.log" || failed=1
exit $failed
