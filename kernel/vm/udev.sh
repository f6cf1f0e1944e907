#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# Fills a folder with what a guest needs to have its devices set up by udev, as an installed system
# does: this machine's udevd and the libraries it is linked with, Debian's first rules and ours, and
# the group that they name. Usage: udev.sh FOLDER. Does nothing where there is no udevd.
set -euo pipefail
kernel=$(dirname "$(realpath "$0")")/..
folder=$1

udevadm=$(command -v udevadm || true)
[[ -n $udevadm && -e /lib/systemd/systemd-udevd ]] || exit 0
# Their places: the guest finds libraries where this machine's linker does.
mapfile -t libraries < <(ldd "$udevadm" | grep -oE '/[^ ]+')
mkdir -p "$folder"/{bin,lib/systemd,lib/udev/rules.d,etc/udev,run}
cp --parents --dereference "${libraries[@]}" "$folder"
cp "$udevadm" "$folder/bin/udevadm"
ln -s /bin/udevadm "$folder/lib/systemd/systemd-udevd"
cp /lib/udev/rules.d/50-udev-default.rules "$kernel/60-stplr.rules" "$folder/lib/udev/rules.d/"
printf 'root:x:0:\n' >"$folder/etc/group"
# As systemd-sysusers reads it: g NAME - -
awk '$1 == "g" { print $2 ":x:" 900 + NR ":" }' "$kernel/stplr-sysusers.conf" >>"$folder/etc/group"
