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
builder='' # the process group of the build that goes on beside the tests
trap '[[ ! $builder ]] || kill -- -"$builder" 2>/dev/null || true; rm -rf "$FARCALL_TEST_FOLDER"' EXIT
chmod 1777 "$FARCALL_TEST_FOLDER"
export FARCALL_TEST_FOLDER

# step PRESET NAME COMMAND...: a failed test NAME until it has been done; shows the end of its output if it fails.
step() {
  local logs=build/$1/Testing preset=$1 name=$2
  shift 2
  echo "<testsuite><testcase name=\"$name\" status=\"fail\"/></testsuite>" >"$logs/not_built.xml"
  if "$@" >"$logs/$name.log" 2>&1 </dev/null; then return 0; fi
  echo "$preset: $name failed:"
  tail -n 40 "$logs/$name.log"
  return 1
}

# build PRESET [COMMAND...]: builds it, where COMMAND is named with that one, such as `nice`.
build() {
  local preset=$1
  shift
  SECONDS=0
  mkdir -p "build/$preset/Testing"
  rm -f "build/$preset/Testing/"{tests,again}.xml
  step "$preset" configure "$@" cmake --preset "$preset" "${configure_options[@]}" || return
  step "$preset" build "$@" cmake --build --preset "$preset" || return
  rm -f "build/$preset/Testing/not_built.xml"
  echo "$preset: built in $SECONDS s"
}

# Waits for the build that goes on beside the tests, if there is one.
built() {
  [[ ! $builder ]] || wait "$builder" || true
  builder=''
}

# Most of what tests do is wait: the next preset is built beside them, with what they leave.
build "${presets[0]}" || true
for i in "${!presets[@]}"; do
  preset=${presets[i]} logs=$PWD/build/${presets[i]}/Testing
  if ((i + 1 < ${#presets[@]})); then
    set -m
    build "${presets[i + 1]}" nice -n 19 &
    set +m
    builder=$!
  fi
  if [[ -e $logs/not_built.xml ]]; then
    results+=("$preset=$logs/not_built.xml")
  else
    echo "$preset: testing"
    SECONDS=0
    # The exit status adds nothing: the summary reads the XML, and counts its absence as a failure.
    if ! ctest --preset "$preset" "${selection[@]}" --output-junit "$logs/tests.xml" \
      >"$logs/tests.log" 2>&1 </dev/null; then
      built # as what is run again is run alone
      scripts/run_again.py "$preset" "$logs" || true
    fi
    echo "$preset: tested in $SECONDS s"
    results+=("$preset=$logs/tests.xml")
  fi
  built
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
