#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# Stress on the debug kernel for a number of minutes, an hour by default: crowds, ioctls at random,
# memory that runs short, then loading and unloading. Usage: stress.sh [MINUTES [PROGRAM NUMBER]],
# where PROGRAM NUMBER is one test that gets all the time, such as stress_test 2.
#
# TAP goes to build/kernel/stress.tap and stdout. Exit status: 0 if the kernel had nothing to
# complain of and nothing leaked, 77 if the debug kernel cannot be had here, else 1.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
top=$(realpath "$here/../..")

minutes=${1:-60}
programs=(stress_test door_stress_test fuzz_test doorfs_fuzz_test load_test)
# So many of their tests go on for STPLR_SECONDS each.
tests=11 only=
if (($# > 1)); then
  programs=("$2") tests=1 only=STPLR_ONLY=$3
fi

mapfile -t kernel < <("$here/debug_kernel.sh")
[[ ${#kernel[@]} == 2 ]] || exit 77
module=$("$here/build.sh" debug W=1)
bin=$top/build/kernel/stress
mkdir -p "$bin"
binaries=()
for program in "${programs[@]}"; do
  "$here/compile.sh" "$here/../tests/$program.c" "$bin/$program"
  binaries+=("$bin/$program")
done

tap=$top/build/kernel/stress.tap
"$here/boot.sh" --seconds $((minutes * 60 + 600)) \
  --append "slub_debug=FZPU panic_on_warn=1 STPLR_PATIENCE=10 STPLR_SECONDS=$((minutes * 60 / tests)) $only" \
  "${kernel[1]}" "$module" "${binaries[@]}" | tee "$tap" ||
  echo "not ok - the guest comes to its end" | tee -a "$tap"
! grep -q '^not ok' "$tap"
