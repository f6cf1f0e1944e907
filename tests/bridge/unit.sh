#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs the bridge under its unit, by Debian's systemd in an emulated machine: what unit/guest.sh says.
# Usage: unit.sh [--series SERIES] [--build FOLDER]
#
# TAP goes to build/kernel/unit/tests.tap and to stdout. Exit status: 0 if every test passed, 77 if
# something is missing, else 1.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
top=$(realpath "$here/../..")

series=6.1 build=$top/build/release
while [[ ${1:-} == --* ]]; do
  case $1 in
    --series) series=$2 && shift ;;
    --build) build=$(realpath "$2") && shift ;;
    *) echo "unit: unknown option $1" >&2 && exit 2 ;;
  esac
  shift
done

PATH=$PATH:/usr/sbin
systemd=/lib/systemd
for tool in qemu-system-x86_64 busybox cpio cmake strip nats-server systemctl journalctl \
  systemd-analyze "$systemd/systemd" "$systemd/systemd-journald"; do
  command -v "$tool" >/dev/null || { echo "test: $tool is missing (scripts/setup.sh kernel)" >&2 && exit 1; }
done
mapfile -t kernel < <("$top/kernel/vm/kernel.sh" "$series")
[[ ${#kernel[@]} == 2 ]] || exit 77

out=$top/build/kernel/unit
root=$out/root
rm -rf "$out"
tap=$out/tests.tap
mkdir -p "$out"
if ! grep -qs '^build farcall-bridge-program: ' "$build/build.ninja"; then
  echo "ok - the bridge runs under its unit # SKIP farcall was built without libnats" | tee "$tap"
  exit 0
fi
mkdir -p "$root"/{dev,proc,sys,run,tmp,var,root,etc/systemd/system,usr/{bin,sbin,lib,lib64}}
flock -o "$top/build/kernel/cmake.lock" cmake --build "$build" --target farcall-tool farcall-bridge-program \
  >"$out/build.log" 2>&1 || {
  tail -n 30 "$out/build.log" >&2
  exit 1
}
ln -s usr/{bin,sbin,lib,lib64} "$root"

# put FILE PLACE: into the guest, with the libraries that it is linked with. Those of Debian have the
# place that they have here; ours are where the package puts them, beside libc.
put() {
  local library beside
  mkdir -p "$root${2%/*}"
  strip -o "$root$2" "$1"
  ldd "$1" >/dev/null || return 0  # a static one
  beside=$(ldd "$1" | sed -n 's|.* => \(/.*\)/libc\.so.*|\1|p')
  while read -r library; do
    if [[ $library == "$build"/* ]]; then
      strip -o "$root$beside/${library##*/}" "$library"
    else
      mkdir -p "$root${library%/*}"
      cp -u --dereference "$library" "$root$library"
    fi
  done < <(ldd "$1" | grep -oE '/[^ ]+' | sort)
}
cp "$(command -v busybox)" "$root/bin/"
put "$systemd/systemd" "$systemd/systemd"
put "$systemd/systemd-journald" "$systemd/systemd-journald"
for tool in systemctl journalctl systemd-analyze nats-server; do
  put "$(command -v "$tool")" "/usr/bin/$tool"
done
put "$build/farcall" /usr/bin/farcall
# As the package has it.
while read -r file folder; do
  place=/${folder:-${file%/*}}/${file##*/}
  case $file in
    */farcall-bridge) put "$build/farcall-bridge" "$place" ;;
    *) install -D -m 644 "$top/src/tool/bridge/${file##*/}" "$root$place" ;;
  esac
done <"$top/packaging/debian/farcall-bridge.install"

units=(basic sysinit sockets slices paths timers local-fs shutdown umount network-online network multi-user)
for unit in "${units[@]/%/.target}" systemd-journald.service systemd-journald{,-dev-log}.socket; do
  install -D -m 644 "$systemd/system/$unit" "$root$systemd/system/$unit"
done
cp "$here/unit/guest.service" "$root/etc/systemd/system/"
install "$here/unit/guest.sh" "$root/root/"
printf '%s:x:%s:%s::/:/bin/sh\n' root 0 0 server 1000 1000 caller 1001 1001 >"$root/etc/passwd"
printf '%s:x:%s:\n' root 0 server 1000 caller 1001 >"$root/etc/group"
echo 0123456789abcdef0123456789abcdef >"$root/etc/machine-id"
echo ID=debian >"$root/etc/os-release"
ln -s /lib/systemd/systemd "$root/init"
(cd "$root" && find . | cpio --quiet -o -H newc -R 0:0) >"$out/initramfs"

timeout --foreground --kill-after=5 "${VM_SECONDS:-300}" qemu-system-x86_64 -accel tcg,thread=multi \
  -cpu max,la57=off -smp 2 -m 1024 -nodefaults -no-reboot -display none -serial stdio \
  -kernel "${kernel[1]}" -initrd "$out/initramfs" \
  -append "console=ttyS0 quiet loglevel=1 panic=-1 systemd.unit=guest.service systemd.show_status=0" \
  </dev/null 2>&1 | stdbuf -oL tr -d '\r' | tee "$tap" || true
grep -q '^# guest is through' "$tap" || echo "not ok - the guest comes to its end" | tee -a "$tap"
! grep -q '^not ok' "$tap"
