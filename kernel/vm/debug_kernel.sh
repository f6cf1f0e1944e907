#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# Builds, once for each debug.config, a kernel that finds faults: KASAN, lockdep, kmemleak, sleeping
# while atomic, fault injection. Usage: debug_kernel.sh [--cached]
#
# Prints its build folder and its image, like fetch.sh. The sources are Debian's linux-source-6.1.
# It is kept in build/kernel, or in FARCALL_KERNEL_CACHE, which can serve several checkouts.
# With --cached only what has been built before is given. Exit status 77: cannot be had here.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
top=${FARCALL_KERNEL_CACHE:-$(realpath "$here/../..")/build/kernel}

hash=$(sha256sum "$here/debug.config" | cut -c1-12)
out=$top/debug-$hash
report() {
  echo "$out"
  echo "$out/arch/x86/boot/bzImage"
}
if [[ -f $out/built ]]; then
  report
  exit
fi
unavailable() {
  echo "debug_kernel: $*" >&2
  exit 77
}

[[ ${1:-} != --cached ]] ||
  unavailable "the debug kernel is not built yet; make -C kernel vm-debug does that"

for tool in apt-get dpkg-deb flex bison bc; do
  command -v "$tool" >/dev/null || unavailable "$tool is missing"
done
source=$top/linux-source-6.1
if [[ ! -f $source/unpacked ]]; then
  rm -rf "$source" "$source-package"
  mkdir -p "$source" "$source-package"
  (cd "$source-package" && timeout 600 apt-get -q download linux-source-6.1) \
    >"$top/source.log" 2>&1 </dev/null ||
    unavailable "apt-get download linux-source-6.1 failed: $(tail -n 1 "$top/source.log")"
  dpkg-deb -x "$source-package"/*.deb "$source-package"
  tar -xf "$source-package/usr/src/linux-source-6.1.tar.xz" -C "$source" --strip-components=1
  rm -rf "$source-package"
  touch "$source/unpacked"
fi

mkdir -p "$out"
{
  make -C "$source" O="$out" allnoconfig
  "$source/scripts/kconfig/merge_config.sh" -m -O "$out" "$out/.config" "$here/debug.config"
  make -C "$source" O="$out" olddefconfig
  nice -n 15 make -C "$source" O="$out" -j"$(nproc)" bzImage modules
} >"$out/build.log" 2>&1 </dev/null || {
  tail -n 30 "$out/build.log" >&2
  exit 1
}
touch "$out/built"
report
