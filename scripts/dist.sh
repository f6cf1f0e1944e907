#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Makes what a release consists of, in build/dist: the archive of the sources, of what git tracks as it is
# in the tree now; of that archive alone, without network where this system lets us do without, the Python
# package as a wheel and as sources; the list of what is compiled into the programs and linked to them
# (SPDX); and SHA256SUMS of all these. Usage: scripts/dist.sh [--twice]
# --twice: makes all of it again and fails unless each byte is the same.
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."

place=$PWD/build/dist
version=$(scripts/sources.sh version)
SOURCE_DATE_EPOCH=$(scripts/sources.sh epoch)
export SOURCE_DATE_EPOCH

# What builds the wheel has to be fetched once.
tools=$PWD/build/wheel/tools
if ! "$tools/bin/python" -c 'import auditwheel, build, pathspec, scikit_build_core, wheel' 2>/dev/null; then
  /usr/bin/python3 -m venv "$tools"
  "$tools/bin/python" -m pip install --quiet --disable-pip-version-check \
    auditwheel build 'scikit-build-core>=0.10' pathspec wheel
fi

offline=()
if unshare --net true 2>/dev/null; then
  offline=(unshare --net)
elif unshare --map-root-user --net true 2>/dev/null; then
  offline=(unshare --map-root-user --net)
else
  echo "dist: this system permits no namespaces: the network stays reachable" >&2
fi

make_all() { # DIRECTORY
  rm -rf "$1" "$place/work"
  mkdir -p "$1" "$place/work"
  scripts/sources.sh "$1/farcall-$version.tar.gz"
  tar -xzf "$1/farcall-$version.tar.gz" -C "$place/work"
  (
    cd "$place/work/farcall-$version"
    FARCALL_WHEEL_TOOLS=$tools "${offline[@]}" scripts/wheel.sh
    "${offline[@]}" cmake --preset release -D FARCALL_BUILD_TESTS=OFF -D FARCALL_BUILD_BENCH=OFF
    "${offline[@]}" cmake --build --preset release
    cmake --install build/release --prefix build/prefix
  ) >"$place/dist.log" 2>&1 || {
    tail -n 40 "$place/dist.log" | cut -c -400 >&2
    echo "dist: the archive could not be built; all of it is in $place/dist.log" >&2
    return 1
  }
  cp "$place/work/farcall-$version/build/wheel/dist"/farcall-*.whl "$1"
  # Python's name for its own sources is that of ours.
  cp "$place/work/farcall-$version/build/wheel/dist/farcall-$version.tar.gz" \
    "$1/farcall-python-$version.tar.gz"
  /usr/bin/python3 scripts/sbom.py --build "$place/work/farcall-$version/build/release" \
    --prefix "$place/work/farcall-$version/build/prefix" --archive "$1/farcall-$version.tar.gz" \
    >"$1/farcall-$version.spdx.json"
  (cd "$1" && sha256sum -- * >SHA256SUMS)
  rm -rf "$place/work"
}

make_all "$place/made"
if [[ ${1:-} == --twice ]]; then
  CCACHE_DISABLE=1 make_all "$place/again"
  diff -r "$place/made" "$place/again"
  rm -rf "$place/again"
  echo "dist: each byte is the same when it is made again"
fi
mv "$place"/made/* "$place"
rmdir "$place/made"
cat "$place/SHA256SUMS"
