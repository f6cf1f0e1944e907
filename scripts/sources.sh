#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Makes the archive of the sources: of what git tracks, as it is in the tree now; of all files where
# these come from such an archive themselves. The same files give the same bytes, whoever makes it.
# Usage: scripts/sources.sh ARCHIVE.tar.gz    or: scripts/sources.sh version | epoch | list [PATH...]
# epoch is the time of the last commit, which all that is packed gets; SOURCE_DATE_EPOCH has its way.
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."

version() { sed -n 's/^project(farcall VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt; }

epoch() {
  if [[ ${SOURCE_DATE_EPOCH:-} ]]; then
    echo "$SOURCE_DATE_EPOCH"
  elif [[ -e .git ]]; then
    git -c safe.directory="$PWD" log -1 --format=%ct
  else
    stat -c %Y CMakeLists.txt
  fi
}

# Ends each name with a NUL.
list() { # PATH...
  if [[ -e .git ]]; then
    git -c safe.directory="$PWD" ls-files -z -- "$@"
  else
    find "$@" -path ./build -prune -o -path ./debian -prune -o -name __pycache__ -prune \
      -o \( -type f -o -type l \) -print0 | sed -z 's|^\./||'
  fi
}

archive() { # ARCHIVE
  list . | LC_ALL=C sort -z |
    tar --create --null --files-from=- --format=gnu --mtime="@$(epoch)" --owner=0 --group=0 \
      --numeric-owner --mode=u+rw,go=rX --transform="flags=r;s|^|farcall-$(version)/|" |
    gzip -9n >"$1"
}

case $1 in
  version | epoch) "$1" ;;
  list)
    shift
    list "${@:-.}"
    ;;
  *) archive "$1" ;;
esac
