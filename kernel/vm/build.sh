#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# Builds the module against a kernel of kernel.sh, outside the sources, and prints where it is.
# Usage: build.sh SERIES|debug [MAKE ARGUMENT...]
set -euo pipefail
here=$(dirname "$(realpath "$0")")

series=$1
shift
mapfile -t kernel < <("$here/kernel.sh" "$series")
[[ ${#kernel[@]} == 2 ]] || exit 77
kdir=${kernel[0]}

# The kernel's build writes beside the sources, so it gets a folder of its own.
top=$(realpath "$here/../..")/build/kernel/$series
out=$top/module
# Without the first interface it is another module.
[[ " $* " != *" CONFIG_STPLR_HANDLES=n "* ]] || out=$top/core
mkdir -p "$out"/{handles,doors}
# One build of it at a time.
exec 9>"$top/lock"
flock 9

# Each series says its compiler; Debian 12's is the one that Debian 12's kernels were built with.
build_here() {
  find "$out" -type l -delete
  for source in "$here"/../{*.[ch],Kbuild,include}; do
    ln -sfn "$(realpath "$source")" "$out/"
  done
  for folder in handles doors; do
    for source in "$here/../$folder"/*; do
      ln -sfn "$(realpath "$source")" "$out/$folder/"
    done
  done
  make -C "$kdir" M="$out" -j"$(nproc)" "$@" modules
}

# Where newer.sh has put a compiler beside the headers, that folder becomes the root for the build.
build_inside() {
  local root=$top/root
  cp -ruL "$here"/../{*.[ch],Kbuild,include,handles,doors} "$out/"
  # shellcheck disable=SC2016  # the inner shell expands them
  unshare --map-root-user --mount sh -c '
    root=$1 out=$2 && shift 2
    mount --rbind /proc "$root/proc" && mount --rbind /dev "$root/dev" &&
      mount --bind "$out" "$root/module" &&
      exec chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin "$@"' \
    build "$root" "$out" make -C "${kdir#"$root"}" M=/module -j"$(nproc)" "$@" modules
}

where=here
[[ ! -x $top/root/usr/bin/gcc ]] || where=inside
"build_$where" "$@" >"$out/build.log" 2>&1 </dev/null || {
  tail -n 40 "$out/build.log" >&2
  exit 1
}
echo "$out/stplr.ko"
