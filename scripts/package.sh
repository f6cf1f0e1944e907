#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Makes Debian's packages, binary and source, in build/package, of what git tracks as it is in the tree
# now, and has lintian look at them. The tests are not run: `make test` does that, and installs the
# packages into a system of their own.
# Usage: scripts/package.sh [--twice] [PLACE]
# --twice: makes them again elsewhere, and fails unless each byte is the same.
#
# CMAKE_CXX_COMPILER_LAUNCHER has its way. DEB_BUILD_OPTIONS adds to what is said here, such as parallel=2.
# Who gives packages to others says in DEBFULLNAME and DEBEMAIL, as for all of Debian's tools, whom
# to write to.
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."

twice=''
if [[ ${1:-} == --twice ]]; then
  twice=yes
  shift
fi
place=$(realpath -m "${1:-build/package}")
version=$(scripts/sources.sh version)
SOURCE_DATE_EPOCH=$(scripts/sources.sh epoch)
export SOURCE_DATE_EPOCH
DEB_BUILD_OPTIONS="parallel=$(nproc) noautodbgsym ${DEB_BUILD_OPTIONS:-}"
export DEB_BUILD_OPTIONS
# There are no packages of debugging symbols: nothing has to be compiled for them.
export DEB_CFLAGS_STRIP=-g DEB_CXXFLAGS_STRIP=-g
# debhelper gives builds a home of their own, where ccache would find nothing.
if command -v ccache >/dev/null; then
  CCACHE_DIR=$(ccache --get-config cache_dir)
  CCACHE_SLOPPINESS=$(ccache --get-config sloppiness)
  CCACHE_BASEDIR=$(ccache --get-config base_dir)
  CCACHE_MAXSIZE=$(ccache --get-config max_size)
  export CCACHE_DIR CCACHE_SLOPPINESS CCACHE_BASEDIR CCACHE_MAXSIZE
fi

build() { # PLACE
  local tree=$1/farcall-$version
  rm -rf "$1"
  mkdir -p "$1"
  scripts/sources.sh "$1/farcall_$version.orig.tar.gz"
  tar -xzf "$1/farcall_$version.orig.tar.gz" -C "$1"
  cp -r "$tree/packaging/debian" "$tree/debian"
  if [[ ${DEBEMAIL:-} ]]; then
    local whom="${DEBFULLNAME:-The farcall developers} <$DEBEMAIL>"
    WHOM=$whom perl -pi -e 's/^(Maintainer: | -- ).*?>/$1$ENV{WHOM}/' \
      "$tree/debian/control" "$tree/debian/changelog"
  fi
  if ! (cd "$tree" && dpkg-buildpackage --unsigned-source --unsigned-changes) >"$1/build.log" 2>&1; then
    tail -n 40 "$1/build.log" | cut -c -400 >&2
    echo "package: the build failed; all of it is in $1/build.log" >&2
    return 1
  fi
  rm -rf "$tree"
}

build "$place"
# Parts of instructions look like words at times, and with the next change do not.
lintian --pedantic --display-info --tag-display-limit 0 --fail-on error,warning,info,pedantic \
  --suppress-tags spelling-error-in-binary "$place"/farcall_*.changes

if [[ $twice ]]; then
  again=$(mktemp -d -p "$(dirname "$place")" package-again.XXXXXX)
  trap 'rm -rf "$again"' EXIT
  CCACHE_DISABLE=1 build "$again/package" # what is kept from the first time proves nothing
  # What is left out tells when and where they were made.
  for made in "$place"/*.{deb,dsc,tar.*}; do
    cmp "$made" "$again/package/${made##*/}"
  done
  echo "package: each byte is the same when they are made again"
fi
ls "$place"/*.deb
