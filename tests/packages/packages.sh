#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Makes the packages, which lintian looks at, and tries them in a Debian system made for that: they are
# installed, a program of each kind runs, and after their removal no file is there that was not before.
# Usage: packages.sh PLACE
set -euo pipefail
place=$1
here=$(dirname "$(realpath "$0")")
top=$(realpath "$here/../..")

skip() { # REASON, as GoogleTest would say it
  printf 'the packages: Skipped\n%s\n\n[  SKIPPED ] the packages\n' "$1"
  exit 0
}

for tool in mmdebstrap dh lintian dh_dkms dh_python3; do
  command -v "$tool" >/dev/null || skip "what makes packages is not installed"
done
if ((EUID == 0)); then
  mode=root
  unshare --mount mount -t tmpfs none /mnt 2>/dev/null || skip "this system permits no namespaces"
else
  mode=unshare
  unshare --user --map-auto --map-root-user --mount true 2>/dev/null ||
    skip "this system permits no namespaces"
fi

# Debian's mirrors, as this machine uses them.
sources=$place/sources.list
mkdir -p "$place"
# shellcheck disable=SC2016 # these are apt's
apt-get indextargets --format 'deb $(REPO_URI) $(RELEASE) $(COMPONENT) # $(ORIGIN)' \
  'Created-By: Packages' | sed -n 's/ # Debian$//p' | sort -u >"$sources"
[[ -s $sources ]] || skip "the packages of this system are not Debian's"

try=$place/try
log=$place/system.log
rm -rf "$try" "$place/made"
mkdir "$try"

# Makes the packages, and says so. What goes in is copied by mmdebstrap: inside, this folder may not
# be ours to read.
make_packages() {
  "$top/scripts/package.sh" "$place/made" >"$place/made.log" 2>&1 &&
    cp "$place"/made/*.deb "$here/in_system.sh" "$try" &&
    tar -xzf "$place"/made/farcall_*.orig.tar.gz -C "$try" &&
    touch "$place/made/all" &&
    echo made
}

# The system is made meanwhile, and then waits for the packages: these need the processors, it the
# disk and the network.
clean='/usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive'
# shellcheck disable=SC2016 # the hooks' variables are theirs
if make_packages | mmdebstrap --mode="$mode" --variant=apt --format=null \
  --aptopt='APT::Install-Recommends "false"' --aptopt='Acquire::Retries "3"' --dpkgopt=force-unsafe-io \
  --include="gcc,libc6-dev,pkg-config,zsh,python3,systemd-standalone-sysusers" \
  --include="linux-headers-$(dpkg --print-architecture)" \
  --customize-hook='read -r packages && [ "$packages" = made ]' \
  --customize-hook="copy-in '$try' /tmp" \
  --customize-hook="chroot \"\$1\" $clean /tmp/try/in_system.sh" \
  "" /dev/null "$sources" >"$log" 2>&1; then
  grep -a ': good$' "$log"
  exit 0
fi
if [[ ! -e $place/made/all ]]; then
  cat "$place/made.log"
elif ! grep -aq ': good$' "$log" &&
  grep -aqE 'Could not resolve|Could not connect|Unable to connect' "$log"; then
  skip "no mirror of Debian can be reached"
fi
tail -n 60 "$log"
exit 1
