#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs the short tests of the kernel module in an emulated machine: on Debian's 6.1 and 6.12, on a
# newer one where there is one, and on the debug kernel, if that has been built. Those of the library's
# messages and doors run over the module, too, and the bridge under its unit, by systemd.
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
SECONDS=0
# run SECONDS COMMAND...: what takes longer hangs, and so has failed.
run() { timeout --kill-after=10 "$1" nice -n 5 "${@:2}" >>"$log" 2>&1 </dev/null; }

# Fetched once, outside the time limits of the tests; what cannot be had is told of by these.
for series in 6.1 6.12 7; do
  run 800 kernel/vm/kernel.sh "$series" || true
done
run 900 kernel/vm/test.sh || status=$?

# in_guest FOLDER WHAT SECONDS COMMAND...: tests of the library.
in_guest() {
  local tap=build/kernel/$1/tests.tap result=0
  mkdir -p "${tap%/*}"
  run "$3" "${@:4}" || result=$?
  if ((result == 77)); then
    echo "ok - the tests of $2 run in a guest # SKIP there is no kernel for it" >"$tap"
  elif ((result != 0)); then
    grep -qs '^not ok' "$tap" || echo "not ok - the tests of $2 come to their end" >>"$tap"
    return 1
  fi
}
newer() {
  local result=0
  VM_SECONDS=800 run 900 kernel/vm/test.sh 7 debug || result=$?
  ((result == 77)) || return "$result"
}

# The library's tests need its build. All tests of doors take minutes, so they run on one kernel; on the
# other one those in which the module has most to do. Two guests at a time, as one leaves a processor idle.
wanted=(newer)
if [[ -f build/release/CMakeCache.txt ]]; then
  wanted=(
    "in_guest doors-6.1 doors 900 kernel/vm/doors.sh --series 6.1"
    newer
    "in_guest messages messages 900 kernel/vm/messages.sh"
    "in_guest unit units 900 tests/bridge/unit.sh"
    "in_guest doors-6.12 doors 900 kernel/vm/doors.sh --series 6.12 --filter
      *DoorEngine*:DoorOfTheKernel.*:DoorCall.*:DoorUnref*:DoorDescriptors.*"
  )
fi
if ((status != 77)); then
  # Jobs in the background ignore what a terminal sends.
  # shellcheck disable=SC2046  # several numbers
  trap 'kill $(jobs -p) 2>/dev/null' EXIT
  set -f
  for job in "${wanted[@]}"; do
    while (($(jobs -rp | wc -l) >= 2)); do
      wait -n || status=1
    done
    $job &
  done
  while (($(jobs -p | wc -l))); do
    wait -n || status=1
  done
  set +f
fi

# Whatever series got as far as to have TAP is read; what prevented all of them is the whole's.
taps=()
for series in host 6.1 6.12 messages unit doors-6.1 doors-6.12 7 debug; do
  tap=build/kernel/$series/tests.tap
  [[ ! -f $tap ]] || taps+=("$series=$tap")
done
if ((status == 77)); then
  reason=$({ grep -E '^test: ' "$log" || echo 'kernels or tools are missing'; } | tail -n 1)
  ((${#taps[@]})) || whole skip "$reason"
  status=0
fi
((${#taps[@]})) || whole fail "$(tail -n 30 "$log")"
/usr/bin/python3 scripts/tap_to_junit.py --status "$status" "${taps[@]}" >"$xml"
