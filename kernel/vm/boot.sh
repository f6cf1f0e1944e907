#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# Boots a kernel in an emulator with the module and test programs, and passes on what the guest
# prints. Usage: boot.sh [--seconds N] [--append ARGUMENTS] [--cpus N] [--icount] [--by-words]
#                        [--with FILE]... [--root FOLDER] KERNEL MODULE PROGRAM...
# --by-words: a processor that does not claim to be fast at copying bytes, which no emulator is.
# Programs are static, as are files that are put beside them; they run in this order. What is in
# FOLDER is in the guest's root folder. Fails unless the guest came to its end; that every test passed
# is for the reader of its TAP to say.
set -euo pipefail
here=$(dirname "$(realpath "$0")")

seconds=120 append='' features=max,la57=off cpus=2 accel=tcg,thread=multi extra=() with=() more=''
while [[ ${1:-} == --* ]]; do
  case $1 in
    --seconds) seconds=$2 && shift ;;
    --append) append=$2 && shift ;;
    --cpus) cpus=$2 && shift ;;
    --with) with+=("$2") && shift ;;
    --root) more=$2 && shift ;;
    --by-words) features+=,erms=off,fsrm=off ;;
    --icount) cpus=1 accel=tcg,thread=single extra=(-icount "shift=0,sleep=off") ;;
    *) echo "boot: unknown option $1" >&2 && exit 2 ;;
  esac
  shift
done
kernel=$1 module=$2
shift 2

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
mkdir -p "$root"/{bin,dev,proc,sys,tmp,tests,etc}
[[ -z $more ]] || cp -r "$more/." "$root"
cp "$(command -v busybox)" "$root/bin/busybox"
cp "$here/init" "$root/init"
cp "$module" "$root/stplr.ko"
cp "$@" "${with[@]}" "$root/tests/"
printf 'root:x:0:0:root:/:/bin/sh\n' >"$root/etc/passwd"
(cd "$root" && find . | cpio --quiet -o -H newc -R 0:0) >"$work/initramfs"

names=("${@##*/}")
list=$(IFS=, && echo "${names[*]}")
log=$work/console
# Without la57: a kernel with KASAN and five levels of page tables panics now and then while it finds
# out what its processor can do, having forgotten for a moment that it has the fifth.
timeout --foreground --kill-after=5 "$seconds" qemu-system-x86_64 -accel "$accel" \
  -cpu "$features" -smp "$cpus" -m 1024 "${extra[@]}" \
  -nodefaults -no-reboot -display none -serial stdio -kernel "$kernel" \
  -initrd "$work/initramfs" -append "console=ttyS0 quiet panic=-1 oops=panic \
stplr_tests=$list $append" </dev/null 2>&1 | stdbuf -oL tr -d '\r' | tee "$log" || true
# A kernel that dies says so in lines that the tests did not print.
grep -q '^# guest is through' "$log"
