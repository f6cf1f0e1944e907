#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# Lets DKMS build the module from what is shipped, for one of the kernels here, in folders of its own;
# DKMS itself is unpacked from Debian's package, not installed. Usage: dkms.sh SERIES
# Exit status 77, with the reason on stderr, where that cannot be had.
set -euo pipefail
PATH+=:/usr/sbin:/sbin # modinfo, for users other than root
here=$(dirname "$(realpath "$0")")
kernel=$(realpath "$here/..")
top=$(realpath "$here/../..")/build/kernel/$1/dkms

mapfile -t headers < <("$here/kernel.sh" "$1")
[[ ${#headers[@]} == 2 ]] || exit 77
release=${headers[0]##*/linux-headers-}
mkdir -p "$top"
if [[ ! -f $top/whole ]]; then # written last
  rm -rf "$top/root" "$top"/dkms_*.deb
  (cd "$top" && timeout 100 apt-get -q download dkms && dpkg-deb -x dkms_*.deb root) \
    >"$top/download.log" 2>&1 </dev/null || {
    echo "dkms: apt-get download dkms failed: $(tail -n 1 "$top/download.log")" >&2
    exit 77
  }
  touch "$top/whole"
fi
field() {
  sed -n "s/^PACKAGE_$1=\"\(.*\)\"$/\1/p" "$kernel/dkms.conf"
}
name=$(field NAME)
version=$(field VERSION)
module=$name/$version
rm -rf "$top"/{src,tree}
mkdir -p "$top/src/$name-$version" "$top/tree"
# What an administrator copies: this folder without what the module does not need.
tar -C "$kernel" -c --exclude=./tests --exclude=./vm --exclude=./bench . |
  tar -C "$top/src/$name-$version" -x
folders=(--sourcetree "$top/src" --dkmstree "$top/tree")
{
  "$top/root/usr/sbin/dkms" add "$module" "${folders[@]}"
  "$top/root/usr/sbin/dkms" build "$module" -k "$release" -a "$(uname -m)" --no-depmod \
    --kernelsourcedir "${headers[0]}" "${folders[@]}"
} >"$top/build.log" 2>&1 || {
  cat "$top/build.log" >&2
  exit 1
}
modinfo "$top/tree/$module/$release/$(uname -m)/module/$name.ko" | grep -q "^vermagic: *$release "
