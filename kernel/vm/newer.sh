#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# Like fetch.sh, for kernels of Debian's next release, whose tools do not run on this one: unpacks
# image, headers, and a compiler that fits into one folder, in which build.sh then works as if it
# were the root. Nothing is installed. Usage: newer.sh SERIES, such as 7
#
# Prints the headers' folder and the image. Exit status 77: cannot be had here.
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/../.."

series=$1
suites="trixie trixie-backports"
top=$PWD/build/kernel/$series
root=$top/root

report() {
  echo "$root/usr/src/linux-headers-$1"
  echo "$root/usr/lib/modules/$1/vmlinuz"
}

if [[ -f $top/release ]]; then
  report "$(<"$top/release")"
  exit
fi

unavailable() {
  echo "newer: $*" >&2
  exit 77
}

for tool in apt-get apt-cache dpkg-deb unshare; do
  command -v "$tool" >/dev/null || unavailable "$tool is missing"
done
unshare --map-root-user --mount true 2>/dev/null || unavailable "no user namespaces here"
keys=/usr/share/keyrings/debian-archive-keyring.gpg
[[ -f $keys ]] || unavailable "Debian's keys are missing"
# From where this machine has its own packages.
# shellcheck disable=SC2016  # apt expands it
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Identifier: Packages' 'Origin: Debian' \
  'Label: Debian' | head -n 1)
[[ -n $mirror ]] || unavailable "apt knows no packages of Debian"

# apt with lists, cache and state of its own.
apt=$top/apt
rm -rf "$root" "$apt"
mkdir -p "$root" "$apt"/{lists/partial,cache/archives/partial,sources}
printf 'Types: deb\nURIs: %s\nSuites: %s\nComponents: main\nSigned-By: %s\n' \
  "$mirror" "$suites" "$keys" >"$apt/sources/next.sources"
options=(-o Dir::Etc::SourceList=/dev/null -o "Dir::Etc::SourceParts=$apt/sources"
  -o "Dir::State::Lists=$apt/lists" -o "Dir::Cache=$apt/cache" -o Dir::State::Status=/dev/null)
timeout 120 apt-get "${options[@]}" -q update >"$top/download.log" 2>&1 </dev/null ||
  unavailable "apt-get update failed: $(tail -n 1 "$top/download.log")"

image=$(apt-cache "${options[@]}" pkgnames "linux-image-$series." |
  { grep -E "^linux-image-${series//./\\.}\.[^-]+-cloud-amd64$" || true; } | sort -V | tail -n 1)
[[ -n $image ]] || unavailable "$suites have no linux-image-$series.*-cloud-amd64"
release=${image#linux-image-}
timeout 600 apt-get "${options[@]}" -q -y --no-install-recommends -t "${suites##* }" \
  --download-only install "$image" "linux-headers-$release" base-files bash coreutils dash \
  diffutils findutils gawk gcc grep libc6-dev make sed \
  >>"$top/download.log" 2>&1 </dev/null ||
  unavailable "apt-get install $image failed: $(tail -n 1 "$top/download.log")"

for package in "$apt"/cache/archives/*.deb; do
  case ${package##*/} in
    # Of no use for building, and big.
    linux-modules-* | dracut* | initramfs* | *systemd* | udev_*) ;;
    *) dpkg-deb -x "$package" "$root" ;;
  esac
done
# What the packages' scripts would do.
[[ -e $root/usr/bin/awk ]] || ln -s gawk "$root/usr/bin/awk"
mkdir -p "$root"/{proc,dev,module}
# With the kernel's own image there, building a module would also want BTF of that very pahole.
rm -f "$root/usr/src/linux-headers-$release/vmlinux"
if [[ ! -f $root/usr/lib/modules/$release/vmlinuz ]]; then
  mkdir -p "$root/usr/lib/modules/$release"
  cp "$root/boot/vmlinuz-$release" "$root/usr/lib/modules/$release/vmlinuz"
fi
rm -rf "$apt"
echo "$release" >"$top/release"
report "$release"
