#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# Builds the module and its tests, and runs them in an emulated machine for each kernel.
# Usage: test.sh [SERIES|debug...]    (default: 6.1 6.12)
# debug is the kernel of debug_kernel.sh, if that has been built; it takes minutes.
#
# Before that, the state machine runs on this machine under the sanitizers.
#
# TAP goes to build/kernel/SERIES/tests.tap, build/kernel/host/tests.tap, and stdout. Exit status: 0 if every test passed, 77
# if kernels, tools or the emulator are missing here, else 1.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
top=$(realpath "$here/../..")

# slub_debug finds what is used after it was freed or beyond its end; a warning is a failure.
arguments="slub_debug=FZPU panic_on_warn=1"
programs=(old_test channel_test inherit_test region_test observe_test stress_test fuzz_test
  load_test)

for tool in qemu-system-x86_64 busybox cpio gcc make; do
  if ! command -v "$tool" >/dev/null; then
    echo "test: $tool is missing" >&2
    exit 77
  fi
done

bin=$top/build/kernel/tests
mkdir -p "$bin"
binaries=() examples=()
for program in "${programs[@]}"; do
  gcc -static -O2 -Wall -Wextra -Wno-unused-parameter -Werror -pthread \
    -I"$here/../include" "$here/../tests/$program.c" "$here/../lib/libstplr.c" -o "$bin/$program"
  binaries+=("$bin/$program")
done

for example in server client_one_way client_two_way; do
  gcc -static -O2 -Wall -Wextra -Werror -I"$here/../include" "$here/../examples/$example.c" \
    -o "$bin/$example"
  examples+=(--with "$bin/$example")
done

# The state machine alone, for two seconds with each sanitizer.
host() {
  local tap=$top/build/kernel/host/tests.tap sanitizer
  mkdir -p "${tap%/*}"
  rm -f "$tap"
  for sanitizer in thread address,undefined; do
    gcc -g -O1 -Wall -Wextra -Werror -fsanitize="$sanitizer" -pthread -I"$here/../tests/shim" \
      "$here/../tests/port_stress.c" "$here/../port.c" -o "$bin/port_stress"
    timeout 60 "$bin/port_stress" 2 >>"$tap" 2>&1 ||
      echo "not ok - the state machine runs clean under -fsanitize=$sanitizer" >>"$tap"
  done
  cat "$tap"
  ! grep -q '^not ok' "$tap"
}

# run SERIES: one kernel, TAP to its file.
run() {
  local kernel=() module seconds=150 more=STPLR_PATIENCE=3 tap=$top/build/kernel/$1/tests.tap
  mkdir -p "${tap%/*}"
  rm -f "$tap"
  if [[ $1 == debug ]]; then
    mapfile -t kernel < <("$here/debug_kernel.sh" --cached)
    seconds=400 more=STPLR_PATIENCE=10
  else
    mapfile -t kernel < <("$here/fetch.sh" "$1")
  fi
  [[ ${#kernel[@]} == 2 ]] || return 77
  module=$("$here/build.sh" "$1" W=1) || return 1
  "$here/boot.sh" --seconds "$seconds" --append "$arguments $more" "${examples[@]}" \
    "${kernel[1]}" "$module" "${binaries[@]}" "$here/../tests/examples_test" >"$tap" 2>&1 ||
    echo "not ok - the guest comes to its end" >>"$tap"
  ! grep -q '^not ok' "$tap"
}

series=("$@")
((${#series[@]})) || series=(6.1 6.12)
status=0
host || status=1
pids=()
for one in "${series[@]}"; do
  run "$one" &
  pids+=($!)
done
for i in "${!series[@]}"; do
  code=0
  wait "${pids[i]}" || code=$?
  [[ ! -f $top/build/kernel/${series[i]}/tests.tap ]] ||
    cat "$top/build/kernel/${series[i]}/tests.tap"
  if ((code == 77 && status == 0)); then
    status=77
  elif ((code != 0 && code != 77)); then
    status=1
  fi
done
exit "$status"
