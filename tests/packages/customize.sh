#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Tries the packages in a new system, as mmdebstrap's hook. Usage: customize.sh ROOT PACKAGES HERE
set -euo pipefail
root=$1 packages=$2 here=$3

echo "packages: the new system is there"
mkdir "$root/tmp/try"
cp "$packages"/*.deb "$here/in_system.sh" "$root/tmp/try"
tar -xzf "$packages"/farcall_*.orig.tar.gz -C "$root/tmp/try" --no-same-owner
chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 \
  DEBIAN_FRONTEND=noninteractive /tmp/try/in_system.sh
rm -rf "$root/tmp/try"
