#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Installs the Debian packages that the named groups need and that are missing.
# Usage: scripts/setup.sh [build|peers|wheel|crates|package|test|programs|demo|plot|bench|lint|kernel]...
# Without any: build.
# Silent, and without any need for privileges, when nothing is missing. With peers, also fetches the
# crates of those that are written in Rust, if there is a cargo that can build them.
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."

# The library needs only the compiler; the rest of "build" serves the tests, the tool and
# the benchmarks, which measure other libraries beside ours. Those of "peers" are large, so only
# the full tests and the benchmarks ask for them.
declare -A packages=(
  [build]="build-essential git cmake ninja-build pkg-config libgtest-dev libbenchmark-dev libfmt-dev
    libcli11-dev nlohmann-json3-dev libzmq3-dev libnng-dev libboost-dev libiceoryx-posh-dev libacl1-dev systemtap-sdt-dev
    libnats-dev libtomlplusplus-dev libtirpc-dev libthrift-dev thrift-compiler libsystemd-dev dbus-daemon
    python3-dev python3-pytest
    python3-numpy mypy"
  [peers]="libgrpc++-dev libcapnp-dev capnproto libucx-dev libfabric-dev libasio-dev libfastrtps-dev"
  [wheel]="python3-venv"
  [crates]="cargo rustc librust-tokio-dev librust-libc-dev"
  [package]="git debhelper dh-dkms dh-python dpkg-dev libpython3-dev lintian mmdebstrap uidmap"
  [test]="valgrind python3 tshark nats-server iproute2 abigail-tools cargo rustc rust-clippy
    librust-tokio-dev librust-libc-dev chromium-headless-shell"
  [programs]="python3 python3.11 libpython3.11-testsuite redis-server redis-tools memcached nginx-light
    curl wrk haproxy postgresql postgresql-contrib iperf3 netcat-openbsd socat sockperf nodejs
    default-jdk-headless golang-go bpftrace"
  [demo]="sockperf"
  [plot]="python3 python3-pandas python3-matplotlib python3-plotly"
  [bench]="python3-zmq"
  [lint]="git clang-format clang-tidy shellcheck"
  [kernel]="build-essential python3 qemu-system-x86 busybox-static cpio kmod libelf-dev flex
    bison bc xz-utils udev systemd nats-server sparse"
)

wanted=()
for group in "${@:-build}"; do
  if [[ -z ${packages[$group]:-} ]]; then
    echo "setup: unknown group '$group', there are: ${!packages[*]}" >&2
    exit 2
  fi
  read -rd '' -a names <<<"${packages[$group]}" || true # ends at the end, not at a delimiter
  wanted+=("${names[@]}")
done

groups=" $* "
# Comparisons do without those that cannot be had. Last of all: cargo may be one of the packages.
tell_once() { # TEXT; once per tree, as this script says nothing when nothing is missing
  if grep -qsxF "$1" build/setup.told; then return; fi
  echo "setup: $1" >&2
  { mkdir -p build && echo "$1" >>build/setup.told; } || true
}
fetch_crates() {
  [[ $groups == *' peers '* ]] || return 0
  if ! command -v cargo >/dev/null; then
    tell_once "there is no cargo, which iceoryx2 is built with; farcall compare has no rows of it"
    return
  fi
  scripts/peer_crates.sh --offline cargo && return 0
  local status=0
  timeout 300 scripts/peer_crates.sh cargo || status=$?
  if ((status == 3)); then
    tell_once "this cargo is too old for iceoryx2; farcall compare has no rows of it"
  elif ((status)); then
    echo "setup: cannot fetch the crates of iceoryx2; farcall compare has no rows of it" >&2
  fi
}

if ! command -v dpkg-query >/dev/null; then
  echo "setup: not a Debian system; make sure that these are installed: ${wanted[*]}" >&2
  fetch_crates
  exit 0
fi

# dpkg-query fails when it does not know one of the names, yet still prints the others.
installed=$(dpkg-query -W -f='${db:Status-Status} ${Package}\n' "${wanted[@]}" 2>/dev/null || true)
missing=()
for package in "${wanted[@]}"; do
  grep -qxF "installed $package" <<<"$installed" || missing+=("$package")
done
if ((${#missing[@]} == 0)); then
  fetch_crates
  exit 0
fi

as_root=()
if ((EUID != 0)); then
  # Without a terminal nobody can type a password, so sudo must not ask for one.
  if [[ -t 0 ]]; then as_root=(sudo); else as_root=(sudo -n); fi
  if ! command -v sudo >/dev/null || ! "${as_root[@]}" true; then
    echo "setup: missing packages, and no right to install them; as root run:" >&2
    echo "  apt-get install --no-install-recommends ${missing[*]}" >&2
    exit 1
  fi
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT

# stdin is closed to apt: a question from a package must fail, not hang.
# sudo drops what names a proxy.
proxies=()
for name in http_proxy https_proxy no_proxy; do
  [[ ! ${!name:-} ]] || proxies+=("$name=${!name}")
done
apt() {
  "${as_root[@]}" env "${proxies[@]}" DEBIAN_FRONTEND=noninteractive \
    apt-get -y -o DPkg::Lock::Timeout=120 "$@" >>"$log" 2>&1 </dev/null
}

# What is installed here is started by the tests themselves, on ports of their own.
policy=/usr/sbin/policy-rc.d
ours='# farcall: scripts/setup.sh' # one that was killed has left it
if [[ ! -e $policy ]] || grep -qsxF "$ours" "$policy"; then
  trap '"${as_root[@]}" rm -f "$policy" "$log"' EXIT
  printf '#!/bin/sh\n%s\nexit 101\n' "$ours" | "${as_root[@]}" tee "$policy" >/dev/null
  "${as_root[@]}" chmod 755 "$policy"
fi

install_missing() { apt update && apt install --no-install-recommends "${missing[@]}"; }
# A run that was interrupted leaves packages half configured, and apt then refuses everything.
repair() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive dpkg --force-confold --configure -a \
    >>"$log" 2>&1 </dev/null || true
}

echo "setup: installing ${missing[*]}" >&2
# Once more after a repair and a pause: mirrors have short outages.
if ! install_missing && ! { repair && sleep 5 && install_missing; }; then
  tail -n 30 "$log" >&2
  echo "setup: could not install ${missing[*]}" >&2
  exit 1
fi
fetch_crates
