#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# Builds the module and its tests, and runs them in an emulated machine for each kernel.
# Usage: test.sh [host|SERIES|debug...]    (default: host 6.1 6.12)
# host is the state machine on this machine, under the sanitizers, and what make install does; debug
# is the kernel of debug_kernel.sh, if that has been built. Two guests run at a time.
#
# TAP goes to build/kernel/SERIES/tests.tap and to stdout; of a kernel that cannot be had here it
# says so. Exit status: 0 if every test passed or was skipped, 77 if tools are missing, else 1.
# VM_SECONDS says how long a guest may take.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
top=$(realpath "$here/../..")

# slub_debug finds what is used after it was freed or beyond its end; a warning is a failure.
arguments="slub_debug=FZPU panic_on_warn=1"
programs=(node_test old_test old_leave_test old_memory_test interface_test
  channel_test pulse_test leave_test channel_pass_test memory_test
  door_test door_end_test door_pass_test door_result_test door_long_test door_unref_test door_path_test door_pool_test door_cost_test
  copy_test write_test exit_test exec_test namespace_test
  given_test busy_test quota_test shared_test freeze_test fuse_test inherit_test raise_test region_test observe_test stall_test memcg_test
  resume_test handler_test stress_test door_stress_test fuzz_test doorfs_fuzz_test load_test unload_test)

for tool in qemu-system-x86_64 busybox cpio gcc make; do
  if ! command -v "$tool" >/dev/null; then
    echo "test: $tool is missing" >&2
    exit 77
  fi
done

bin=$top/build/kernel/tests
mkdir -p "$bin"
binaries=() examples=()
"$here/compile.sh" "$here/../tests/core_test.c" "$bin/core_test"
for program in "${programs[@]}"; do
  "$here/compile.sh" "$here/../tests/$program.c" "$bin/$program"
  binaries+=("$bin/$program")
done

for example in server client_one_way client_two_way; do
  gcc -static -O2 -Wall -Wextra -Werror -I"$here/../include" "$here/../examples/$example.c" \
    -o "$bin/$example"
  examples+=(--with "$bin/$example")
done

udev=$top/build/kernel/udev
rm -rf "$udev"
mkdir -p "$udev"
"$here/udev.sh" "$udev"

# The state machine alone, for two seconds with each sanitizer, and the installation.
host() {
  local tap=$top/build/kernel/host/tests.tap sanitizer
  mkdir -p "${tap%/*}"
  rm -f "$tap"
  for sanitizer in thread address,undefined; do
    gcc -g -O1 -Wall -Wextra -Werror -fsanitize="$sanitizer" -pthread -I"$here/../tests/shim" \
      "$here/../tests/port_stress.c" "$here/../"{port,call,sender}.c -o "$bin/port_stress" >>"$tap" 2>&1 &&
      timeout 200 "$bin/port_stress" 2 >>"$tap" 2>&1 ||
      echo "not ok - the state machine runs clean under -fsanitize=$sanitizer" >>"$tap"
  done
  gcc -g -O1 -Wall -Wextra -Werror -fsanitize=address,undefined -pthread -I"$here/../tests/shim" \
    "$here/../tests/port_test.c" "$here/../"{port,call,sender}.c -o "$bin/port_test" >>"$tap" 2>&1 &&
    timeout 60 "$bin/port_test" >>"$tap" 2>&1 ||
    echo "not ok - the state machine takes its steps in order" >>"$tap"
  "$here/../tests/install_test" >>"$tap" 2>&1 ||
    echo "not ok - what is installed is as it should be" >>"$tap"
  ! grep -q '^not ok' "$tap"
}

built_by_dkms() {
  local status=0 said
  said=$("$here/dkms.sh" "$1" 2>&1) || status=$?
  case $status in
    0) echo "ok - DKMS builds the module" ;;
    77) echo "ok - DKMS builds the module # SKIP ${said##*$'\n'}" ;;
    *) printf '# %s\nnot ok - DKMS builds the module\n' "${said//$'\n'/$'\n# '}" ;;
  esac
}

# run SERIES: one kernel, TAP to its file.
run() {
  local kernel=() core=() module seconds=700 more=STPLR_PATIENCE=3 tap=$top/build/kernel/$1/tests.tap
  local reason
  mkdir -p "${tap%/*}"
  rm -f "$tap"
  if [[ $1 == debug ]]; then
    seconds=800 more=STPLR_PATIENCE=10
  fi
  mapfile -t kernel < <("$here/kernel.sh" "$1" 2>"$tap.reason")
  reason=$(tail -n 1 "$tap.reason")
  rm -f "$tap.reason"
  if [[ ${#kernel[@]} != 2 ]]; then
    echo "ok - the tests run on this kernel # SKIP $reason" >"$tap"
    return
  fi
  module=$("$here/build.sh" "$1" W=1) || return 1
  if [[ $1 == 6.1 ]]; then
    core=(--with "$("$here/build.sh" "$1" W=1 CONFIG_STPLR_HANDLES=n)") || return 1
    core+=(--with "$bin/core_test")
  fi
  "$here/boot.sh" --seconds "${VM_SECONDS:-$seconds}" --append "$arguments $more" "${examples[@]}" \
    "${core[@]}" --root "$udev" "${kernel[1]}" "$module" "${binaries[@]}" "$here/../tests/examples_test" >"$tap" 2>&1 ||
    echo "not ok - the guest comes to its end" >>"$tap"
  if [[ $1 == [0-6].* ]]; then
    built_by_dkms "$1" >>"$tap" 2>&1
  fi
  ! grep -q '^not ok' "$tap"
}

series=("$@")
((${#series[@]})) || series=(host 6.1 6.12)
status=0
for one in "${series[@]}"; do
  while (($(jobs -rp | wc -l) >= 2)); do
    wait -n || status=1
  done
  if [[ $one == host ]]; then host & else run "$one" & fi
done
while (($(jobs -p | wc -l))); do
  wait -n || status=1
done
for one in "${series[@]}"; do
  tap=$top/build/kernel/$one/tests.tap
  [[ ! -f $tap ]] || cat "$tap"
done
exit "$status"
