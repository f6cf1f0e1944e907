#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds and runs the tests. Usage: scripts/test.sh [--quick] [PRESET...]
# Presets: release, asan-ubsan, tsan, dev. Without any: the first three, and the kernel module's
# tests. With --quick: one preset, release if none is named, without what takes long: programs of
# others, kills, attacks, load, benchmarks, valgrind, installations. Everything said by a test is kept
# in build/PRESET/Testing/. The last line reads "N passed, N failed, N skipped".
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."

# The dynamic linker takes blanks and colons in LD_PRELOAD as ends of names.
if [[ $PWD == *[\ :]* ]]; then
  echo "test: nothing below '$PWD' can be preloaded, as it has a blank or a colon; move the tree to a folder without" >&2
  exit 1
fi
# What is measured or tested on this machine is not to go through a proxy.
export no_proxy="${no_proxy:+$no_proxy,}127.0.0.1,::1,localhost"
export PYTHONDONTWRITEBYTECODE=1 # what is packed may be this tree

quick='' selection=() packages=(build peers test programs plot package)
if [[ ${1:-} == --quick ]]; then
  shift
  quick=yes packages=(build)
  selection=(-LE '^(programs|crash|hostile|stress|soak|bench-smoke|valgrind|consumer)$')
fi
scripts/setup.sh "${packages[@]}"
# Now, where somebody may still be there to type a password, and without a time limit. Where it fails,
# the kernel's tests are skipped and say so.
if (($# == 0)) && [[ ! $quick ]]; then scripts/setup.sh kernel || true; fi

presets=("$@")
if ((${#presets[@]} == 0)); then
  if [[ $quick ]]; then presets=(release); else presets=(release asan-ubsan tsan); fi
fi

# In CI a warning fails the optimised build as well, where the optimiser sees more; users with
# other compilers are spared. The other presets are always strict.
configure_options=()
[[ -z ${CI:-} ]] || configure_options=(-D FARCALL_WERROR=ON)

results=()

# What a test that is killed has left goes with this. Tests with other users work in it, too.
FARCALL_TEST_FOLDER=$(mktemp -d /tmp/farcall-tests-XXXXXX)
trap 'rm -rf "$FARCALL_TEST_FOLDER"' EXIT
chmod 1777 "$FARCALL_TEST_FOLDER"
export FARCALL_TEST_FOLDER

# step NAME COMMAND...: on failure shows the end of its output and counts as a failed test NAME.
step() {
  local name=$1 log=$logs/$1.log
  shift
  if "$@" >"$log" 2>&1 </dev/null; then return 0; fi
  echo "$preset: $name failed:"
  tail -n 40 "$log"
  echo "<testsuite><testcase name=\"$name\" status=\"fail\"/></testsuite>" >"$logs/$name.xml"
  results+=("$preset=$logs/$name.xml")
  return 1
}

for preset in "${presets[@]}"; do
  logs=$PWD/build/$preset/Testing
  mkdir -p "$logs"
  echo "$preset: building"
  SECONDS=0
  step configure cmake --preset "$preset" "${configure_options[@]}" || continue
  step build cmake --build --preset "$preset" || continue
  echo "$preset: built in $SECONDS s, testing"
  SECONDS=0
  rm -f "$logs/tests.xml" "$logs/again.xml"
  # The exit status adds nothing: the summary reads the XML, and counts its absence as a failure.
  ctest --preset "$preset" "${selection[@]}" --output-junit "$logs/tests.xml" \
    >"$logs/tests.log" 2>&1 </dev/null ||
    scripts/run_again.py "$preset" "$logs" || true
  echo "$preset: tested in $SECONDS s"
  results+=("$preset=$logs/tests.xml")
done

# The kernel module, in an emulated machine. With presets named, only those are run.
if (($# == 0)) && [[ ! $quick ]]; then
  echo "kernel: testing"
  SECONDS=0
  scripts/kernel_test.sh "$PWD/build/kernel/tests.xml" || true
  echo "kernel: tested in $SECONDS s"
  results+=("kernel=$PWD/build/kernel/tests.xml")
fi

tolerant=()
[[ ! ${TOLERATE_UNSTEADY:-} ]] || tolerant=(--tolerate-unsteady)
/usr/bin/python3 scripts/test_summary.py --may-skip tests/may_skip.txt "${tolerant[@]}" "${results[@]}"
