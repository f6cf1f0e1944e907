#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Makes what a release consists of, in build/dist: the archive of the sources, of what git tracks as it
# is in the tree now; of that archive alone, without network where this system lets us do without, the
# Python package as a wheel and as sources, and the packages of the Rust crates; the list of what is
# compiled into the programs and linked to them (SPDX); and SHA256SUMS of all these. Then all of it is
# made again, of the archive that was made, in another folder and with another umask and time zone:
# each byte has to be the same.
# Usage: scripts/dist.sh [--once]
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."

place=$PWD/build/dist
version=$(scripts/sources.sh version)
SOURCE_DATE_EPOCH=$(scripts/sources.sh epoch)
export SOURCE_DATE_EPOCH

# What builds the wheel has to be fetched once, as has what reads lists of the kind of ours.
tools=$PWD/build/wheel/tools
if ! "$tools/bin/python" -c 'import auditwheel, build, pathspec, scikit_build_core, spdx_tools, wheel' \
  2>/dev/null; then
  # One whose making was interrupted has no pip.
  "$tools/bin/python" -m pip --version >/dev/null 2>&1 || /usr/bin/python3 -m venv --clear "$tools"
  "$tools/bin/python" -m pip install --quiet --disable-pip-version-check \
    auditwheel build 'scikit-build-core>=0.10' pathspec spdx-tools wheel
fi

offline=()
if unshare --net true 2>/dev/null; then
  offline=(unshare --net)
elif unshare --map-root-user --net true 2>/dev/null; then
  offline=(unshare --map-root-user --net)
else
  echo "dist: this system permits no namespaces: the network stays reachable" >&2
fi

# Of the archive, in the root of what was in it.
make_products() {
  FARCALL_WHEEL_TOOLS=$tools scripts/wheel.sh
  # Where it was compiled would be in what debuggers read, and in the identity of what is linked.
  CFLAGS=-ffile-prefix-map=$PWD=. CXXFLAGS=-ffile-prefix-map=$PWD=. cmake --preset release \
    -D CMAKE_BUILD_WITH_INSTALL_RPATH=ON -D FARCALL_PLOT_SCRIPTS=/usr/share/farcall \
    -D FARCALL_BUILD_TESTS=OFF -D FARCALL_BUILD_BENCH=OFF -D FARCALL_PEER_MODULES=OFF
  cmake --build --preset release
  cmake --install build/release --prefix build/prefix
  scripts/crates.sh build/release/bindings/c
}
export -f make_products
export tools
# What ccache gives has the paths of where it was compiled first, and proves nothing when it comes
# again.
export CCACHE_DISABLE=1

make_all() { # PLACE, of the sources in the current folder; they are built in PLACE.work
  local tree=$1.work/farcall-$version
  rm -rf "$1" "$1.work"
  mkdir -p "$1" "$1.work"
  scripts/sources.sh "$1/farcall-$version.tar.gz"
  tar -xzf "$1/farcall-$version.tar.gz" --no-same-permissions -C "$1.work"
  if ! (cd "$tree" && "${offline[@]}" bash -euo pipefail -c make_products) >"$place/dist.log" 2>&1; then
    tail -n 40 "$place/dist.log" | cut -c -400 >&2
    echo "dist: the archive could not be built; all of it is in $place/dist.log" >&2
    return 1
  fi
  cp "$tree"/build/wheel/dist/farcall-*.whl "$tree"/build/crates/dist/*.crate "$1"
  # Python's name for its own sources is that of ours.
  cp "$tree/build/wheel/dist/farcall-$version.tar.gz" "$1/farcall-python-$version.tar.gz"
  (
    cd "$1"
    bill=farcall-$version.spdx.json
    "$tree/scripts/sbom.py" --build "$tree/build/release" --prefix "$tree/build/prefix" \
      --archive "farcall-$version.tar.gz" -- *.whl farcall-python-*.tar.gz *.crate >"$bill"
    "$tree/scripts/check_sbom.py" --prefix "$tree/build/prefix" "$bill"
    "$tools/bin/pyspdxtools" --infile "$bill" >/dev/null
    sha256sum -- * >SHA256SUMS
  )
}

mkdir -p "$place"
make_all "$place/made"
if [[ ${1:-} != --once ]]; then
  (
    export TZ=Pacific/Chatham LC_ALL=C
    umask 077
    unset SOURCE_DATE_EPOCH
    cd "$place/made.work/farcall-$version"
    SOURCE_DATE_EPOCH=$(scripts/sources.sh epoch)
    export SOURCE_DATE_EPOCH
    make_all "$place/again"
  )
  diff -r "$place/made" "$place/again"
  echo "dist: each byte is the same when it is made again"
fi
find "$place" -mindepth 1 -maxdepth 1 -type f ! -name dist.log -delete
mv "$place"/made/* "$place"
rm -rf "$place"/{made,again}{,.work}
cat "$place/SHA256SUMS"
