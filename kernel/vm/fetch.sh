#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# Unpacks, without installing, a Debian cloud kernel with its headers, and prints two lines: the
# folder to build modules against, and the kernel to boot. Usage: fetch.sh SERIES, such as 6.12
#
# The packages come from the machine's own apt sources and are kept in build/kernel/SERIES.
# Exit status 77 means that they cannot be had here; the reason is on stderr.
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/../.."

series=$1
top=$PWD/build/kernel/$series
root=$top/root

report() {
  local release=$1
  echo "$root/usr/src/linux-headers-$release"
  echo "$root/boot/vmlinuz-$release"
}

# The stamp is written last, so a folder that has it is whole.
report_if_whole() {
  [[ -f $top/release ]] || return 0
  report "$(<"$top/release")"
  exit
}

unavailable() {
  echo "fetch: $*" >&2
  exit 77
}

report_if_whole
# One at a time; whoever waited finds it there.
mkdir -p "$top"
exec {lock}>"$top/lock"
flock "$lock"
report_if_whole

for tool in apt-get apt-cache dpkg-deb; do
  command -v "$tool" >/dev/null || unavailable "no $tool, so Debian's kernels cannot be unpacked"
done

image=$(apt-cache pkgnames "linux-image-$series." |
  { grep -E "^linux-image-${series//./\\.}\.[^-]+(-[0-9]+)?-cloud-amd64$" || true; } |
  sort -V | tail -n 1)
[[ -n $image ]] || unavailable "apt knows no linux-image-$series.*-cloud-amd64"
release=${image#linux-image-}
base=${release%-cloud-amd64}

# What the headers depend on says which kbuild they want: it has a release of its own at times.
kbuild=$(apt-cache depends "linux-headers-$release" | { grep -oE 'linux-kbuild-[^ >]+' || true; } |
  head -n 1)
[[ -n $kbuild ]] || unavailable "apt knows no linux-headers-$release"

rm -rf "$root" "$top/debs"
mkdir -p "$root" "$top/debs"
(cd "$top/debs" && timeout 300 apt-get -q download "$image" "linux-headers-$release" \
  "linux-headers-$base-common" "$kbuild") >"$top/download.log" 2>&1 </dev/null ||
  unavailable "apt-get download $image failed: $(tail -n 1 "$top/download.log")"
for package in "$top"/debs/*.deb; do
  if [[ $package == */linux-image-* ]]; then
    # Of the image only the kernel itself is wanted, not its modules.
    dpkg-deb --fsys-tarfile "$package" | tar -x -C "$root" --wildcards './boot/*'
  else
    dpkg-deb -x "$package" "$root"
  fi
done

# The headers expect to lie under /usr.
headers=$root/usr/src/linux-headers-$release
sed -i "s|/usr/src/|$root/usr/src/|g" "$headers/Makefile"
for link in "$root"/usr/src/linux-headers-*/{scripts,tools}; do
  [[ -L $link ]] || continue
  target=$(readlink "$link")
  [[ $target != /usr/* ]] || ln -sfn "$root$target" "$link"
done
# With the kernel's own image there, building a module would also want pahole, for BTF.
rm -f "$headers/vmlinux"
rm -rf "$top/debs"
echo "$release" >"$top/release"
report "$release"
