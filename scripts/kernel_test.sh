#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs the short tests of the kernel module on Debian's 6.1 and 6.12 in an emulated machine.
# Usage: scripts/kernel_test.sh JUNIT_XML
#
# The XML is written in any case: where packages or the emulator cannot be had, it says that the
# tests were skipped, and why. All output of the guests goes to a .log beside it.
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."

xml=$1
log=${xml%.xml}.log
mkdir -p "$(dirname "$xml")"
rm -f "$xml"

# A skip or a failure of the whole, in place of single tests.
whole() {
  /usr/bin/python3 scripts/tap_to_junit.py --"$1" "$2" >"$xml"
  exit 0
}

timeout 300 scripts/setup.sh kernel >"$log" 2>&1 </dev/null ||
  whole skip "the packages for kernel tests cannot be installed"
rm -f build/kernel/*/tests.tap
status=0
timeout --kill-after=10 400 nice -n 5 kernel/vm/test.sh 6.1 6.12 >>"$log" 2>&1 </dev/null || status=$?

# Whatever series got as far as to have TAP is read; what prevented all of them is the whole's.
taps=()
for series in host 6.1 6.12; do
  tap=build/kernel/$series/tests.tap
  [[ ! -f $tap ]] || taps+=("$series=$tap")
done
if ((status == 77)); then
  reason=$({ grep -E '^(test|fetch): ' "$log" || echo 'kernels or tools are missing'; } | tail -n 1)
  ((${#taps[@]})) || whole skip "$reason"
  status=0
fi
((${#taps[@]})) || whole fail "$(tail -n 30 "$log")"
/usr/bin/python3 scripts/tap_to_junit.py --status "$status" "${taps[@]}" >"$xml"
