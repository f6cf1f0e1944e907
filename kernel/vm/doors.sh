#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# Runs the library's tests of doors (tests/door), the examples and programs written for Solaris over
# the module, in an emulated machine: the same binaries that run on this machine over shared memory.
# Usage: doors.sh [--series SERIES] [--build FOLDER] [--filter GTEST_FILTER]
#
# TAP goes to build/kernel/doors-SERIES/tests.tap and to stdout. Exit status: 0 if every test passed or
# was skipped, 77 if something is missing, else 1.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
top=$(realpath "$here/../..")

series=6.1 build=$top/build/release filter=''
while [[ ${1:-} == --* ]]; do
  case $1 in
    --series) series=$2 && shift ;;
    --build) build=$(realpath "$2") && shift ;;
    --filter) filter=$2 && shift ;;
    *) echo "doors: unknown option $1" >&2 && exit 2 ;;
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

out=$top/build/kernel/doors-$series
root=$out/root
rm -rf "$root"
mkdir -p "$root"/{programs,libraries,etc}
targets=(door-process-tests door-kernel-tests door-caller)
mapfile -t examples < <(sed -nE 's/^ *farcall_add_door_(example|program)\(([a-z_]+)\..*/door-\2/p' \
  "$top/examples/doors/CMakeLists.txt" | tr _ - | sort -u)
flock -o "$top/build/kernel/cmake.lock" cmake --build "$build" --target "${targets[@]}" "${examples[@]}" >"$out/build.log" 2>&1 || {
  tail -n 30 "$out/build.log" >&2
  exit 1
}

# put PROGRAM: into the guest, with the libraries that it is linked with. The loader has to be where
# the program says; the others are found by LD_LIBRARY_PATH, wherever they were built.
put() {
  local library
  strip -o "$root/programs/${1##*/}" "$1"
  while read -r library; do
    cp -u --dereference "$library" "$root/libraries/"
  done < <(ldd "$1" | awk '$2 == "=>" && $3 ~ "^/" { print $3 }')
  library=$(ldd "$1" | awk '$1 ~ "^/.*ld-" { print $1 }')
  mkdir -p "$root/${library%/*}"
  cp -u --dereference "$library" "$root/$library"
}
# at NAME: the folder of the guest that has the name that a program has here.
at() {
  mkdir -p "$root${1%/*}"
  mv "$root/programs/${1##*/}" "$root${1%/*}/"
}
for program in door-process-tests door-kernel-tests; do
  put "$build/tests/door/$program"
done
# Tests execute others by the names that these have here.
put "$build/tests/door/door-caller"
at "$build/tests/door/door-caller"
for example in "${examples[@]}"; do
  put "$build/examples/doors/$example"
  at "$build/examples/doors/$example"
done
# What CTest would run of them, as a script for the guest.
ctest --test-dir "$build" --show-only=json-v1 -R '^Example\.door-' | /usr/bin/python3 -c '
import json, shlex, sys
for test in json.load(sys.stdin)["tests"]:
    command = shlex.join(["/bin/sh"] + test["command"][1:])
    print("run", test["name"], command)' >"$root/programs/examples"
# Programs that were written for Solaris, see tests/consumer/doors.sh.
foreign=$top/tests/consumer/doors flags=(-I"$top/include/farcall/compat" -I"$top/include" -D_THREAD_SAFE
  -L"$build/src/door" -lfarcall-doors -lpthread)
for program in server client; do
  gcc -O2 "$foreign/$program.c" -o "$out/foreign-$program" "${flags[@]}"
done
g++ -O2 "$foreign/program.cpp" -o "$out/foreign-program" "${flags[@]}"
g++ -O2 -std=c++20 "$foreign/owner.cpp" -o "$out/foreign-owner" "${flags[@]}"
for program in server client program owner; do
  LD_LIBRARY_PATH=$build/src/door put "$out/foreign-$program"
done
[[ -z $filter ]] || echo "$filter" >"$root/programs/filter"
cp "$here/../tests/doors_list" "$root/programs/"

tap=$out/tests.tap
"$here/boot.sh" --seconds "${VM_SECONDS:-800}" --append "slub_debug=FZPU panic_on_warn=1" \
  --root "$root" "${kernel[1]}" "$module" "$here/../tests/doors_test" >"$tap" 2>&1 </dev/null ||
  echo "not ok - the guest comes to its end" >>"$tap"
cat "$tap"
! grep -q '^not ok' "$tap"
