#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Inside of the new system: installs the packages, tries them, takes them away again, and compares.
set -euo pipefail
cd /tmp/try
echo "a new system: good"

apt() { apt-get -q -y -o APT::Keep-Downloaded-Packages=false "$@" </dev/null; }

# Names, kinds, owners and modes of all files, and what is in those of /etc. Not what apt and dpkg write
# about their own work, nor copies of /etc/group and the like that are made whenever these change.
state() {
  find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /tmp -o -path /var/log \
    -o -path /var/cache/apt -o -path /var/lib/apt -o -path '/var/lib/dpkg/*-old' \
    -o -path /var/lib/dpkg/triggers -o -path '/etc/*-' \) -prune -o -printf '%p %y %u:%g %m %l\n' | LC_ALL=C sort
  find /etc -type f ! -name ld.so.cache ! -name '*-' -exec cksum {} + | LC_ALL=C sort
}

# What they need of others is there before, and stays.
mapfile -t ours < <(for deb in ./*.deb; do dpkg-deb -f "$deb" Package; done)
mapfile -t needed < <(apt-get -s install ./*.deb | sed -n 's/^Inst \([^ ]*\) .*/\1/p' |
  grep -vxF -f <(printf '%s\n' "${ours[@]}"))
((${#needed[@]} == 0)) || apt install "${needed[@]}"
# The index of a kernel's modules is written when the first one comes, and then again.
for headers in /lib/modules/*/build; do depmod "$(basename "$(dirname "$headers")")"; done

state >before
apt install ./*.deb
echo "installed ${#ours[@]} packages: good"

(cd farcall-*/ && packaging/debian/tests/programs)

# The module, of the sources that were installed, for the kernel whose headers are here.
read -r module version < <(sed -n 's/^PACKAGE_\(NAME\|VERSION\)="\(.*\)"$/\2/p' \
  farcall-*/kernel/dkms.conf | paste -sd ' ')
for headers in /lib/modules/*/build; do
  release=$(basename "$(dirname "$headers")")
  [[ $(dkms status "$module/$version" -k "$release") == *installed* ]] ||
    dkms install "$module/$version" -k "$release" --no-depmod
  built=$(find "/lib/modules/$release" -name "$module.ko*")
  modinfo -F vermagic "$built" | grep -q "^$release "
  echo "the module for $release: good"
done

apt purge "${ours[@]}"
# The group stays: nodes in /dev of a module that is still loaded belong to it, and would be the next
# group's that gets its number.
getent group stplr >/dev/null
groupdel stplr
state >after
if ! diff before after; then
  echo "what is left of the packages, or missing, stands above" >&2
  exit 1
fi
echo "nothing is left: good"
