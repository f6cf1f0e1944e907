#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# Builds the module against a kernel of fetch.sh or debug_kernel.sh, outside the sources, and prints where it is.
# Usage: build.sh SERIES|debug [MAKE ARGUMENT...]
set -euo pipefail
here=$(dirname "$(realpath "$0")")

series=$1
shift
if [[ $series == debug ]]; then
  mapfile -t kernel < <("$here/debug_kernel.sh" --cached)
else
  mapfile -t kernel < <("$here/fetch.sh" "$series")
fi
[[ ${#kernel[@]} == 2 ]] || exit 77
kdir=${kernel[0]}

# The kernel's build writes beside the sources, so it gets links to them in a folder of its own.
out=$(realpath "$here/../..")/build/kernel/$series/module
mkdir -p "$out"
find "$out" -type l -delete
for source in "$here"/../{*.[ch],Kbuild,include}; do
  ln -sfn "$(realpath "$source")" "$out/"
done
# Each series says its compiler; Debian 12's is the one that Debian 12's kernels were built with.
make -C "$kdir" M="$out" -j"$(nproc)" "$@" modules >"$out/build.log" 2>&1 </dev/null || {
  tail -n 40 "$out/build.log" >&2
  exit 1
}
echo "$out/stplr.ko"
