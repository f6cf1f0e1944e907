#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# Runs the tests of messages (tests/message), those of doors of the kernel (tests/door), and programs that
# are named, over the module in an emulated machine. Usage: messages.sh [--series SERIES] [--build FOLDER] [--with FILE]... [PROGRAM...]
#
# TAP goes to build/kernel/messages/tests.tap and to stdout. Exit status: 0 if every test passed or
# was skipped, 77 if something is missing, else 1. A program is static; it is run with
# FARCALL_ENGINE=kernel, and what it prints is passed on.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
top=$(realpath "$here/../..")

series=6.1 build=$top/build/release with=()
while [[ ${1:-} == --* ]]; do
  case $1 in
    --series) series=$2 && shift ;;
    --build) build=$2 && shift ;;
    --with) with+=(--with "$2") && shift ;;
    *) echo "messages: unknown option $1" >&2 && exit 2 ;;
  esac
  shift
done

for tool in qemu-system-x86_64 busybox cpio cmake; do
  if ! command -v "$tool" >/dev/null; then
    echo "test: $tool is missing" >&2
    exit 77
  fi
done
mapfile -t kernel < <("$here/kernel.sh" "$series")
[[ ${#kernel[@]} == 2 ]] || exit 77
# With the warnings that test.sh has, so that not all of it is compiled once more.
module=$("$here/build.sh" "$series" W=1)

out=$top/build/kernel/messages
mkdir -p "$out"
if (($#)); then
  programs=("$@")
else
  flock -o "$top/build/kernel/cmake.lock" cmake --build "$build" --target message-guest-tests door-guest-tests >"$out/build.log" 2>&1 || {
    tail -n 30 "$out/build.log" >&2
    exit 1
  }
  for room in message door; do
    strip -o "$out/$room-guest-tests" "$build/tests/$room/$room-guest-tests"
    with+=(--with "$out/$room-guest-tests")
  done
  programs=("$here/../tests/messages_test")
fi

tap=$out/tests.tap
"$here/boot.sh" --seconds "${VM_SECONDS:-800}" --append "slub_debug=FZPU panic_on_warn=1" \
  "${with[@]}" "${kernel[1]}" "$module" "${programs[@]}" >"$tap" 2>&1 ||
  echo "not ok - the guest comes to its end" >>"$tap"
cat "$tap"
! grep -q '^not ok' "$tap"
