#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Installs a build to a fresh prefix, and tries one way for programs to come to doors.
# Usage: doors_linking.sh order|loaded|door|plain|static|exports|find_package BUILD_DIR
set -euo pipefail
way=$1 build_dir=$2
sources=$(dirname "$(realpath "$0")")/doors

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cmake --install "$build_dir" --prefix "$work/prefix" >/dev/null
pc=$(find "$work/prefix" -name farcall-doors.pc)
lib=${pc%/pkgconfig/*}
export PKG_CONFIG_PATH=$lib/pkgconfig LD_LIBRARY_PATH=$lib
plain_flags() { pkg-config --cflags --libs "$@" farcall-doors-plain; }
strict=(-Wall -Wextra -Werror)

expect() { # WHAT EXPECTED ACTUAL
  if [[ $3 != "$2" ]]; then
    printf '%s printed:\n%s\ninstead of:\n%s\n' "$1" "$3" "$2" >&2
    exit 1
  fi
}

case $way in
  order) # The C library may come first; then open() and its relatives are not the library's.
    read -ra flags <<<"$(pkg-config --cflags --libs farcall-doors)"
    gcc "${strict[@]}" "$sources/plain.c" -o "$work/program" -Wl,--no-as-needed -lc "${flags[@]}"
    expect program 'client: 0' "$("$work/program" "$work/door")"
    ;;
  loaded)
    read -ra flags <<<"$(pkg-config --cflags farcall-doors-plain)"
    gcc "${strict[@]}" "$sources/loaded.c" -o "$work/program" "${flags[@]}" -ldl
    for library in libfarcall-doors.so libfarcall-doors-plain.so; do
      for how in local deep global; do
        expect "$library, $how" hello "$("$work/program" "$lib/$library" $how "$work/door" 2>&1)"
      done
    done
    ;;
  door) # As Makefiles for Solaris say it.
    read -ra flags <<<"$(pkg-config --cflags farcall-doors)"
    gcc "$sources/headers.c" -o "$work/program" "${flags[@]}" -L"$lib" -ldoor
    "$work/program"
    ;;
  plain)
    read -ra flags <<<"$(plain_flags)"
    gcc "${strict[@]}" -std=gnu17 "$sources/plain.c" -o "$work/program" "${flags[@]}"
    expect program 'client: 0' "$("$work/program" "$work/door")"
    g++ "${strict[@]}" -x c++ "$sources/plain.c" -o "$work/program" -x none "${flags[@]}"
    expect program 'client: 0' "$("$work/program" "$work/door")"
    ;;
  static) # By a compiler of C, which knows nothing of C++.
    read -ra flags <<<"$(plain_flags --static)"
    gcc "${strict[@]}" -static "$sources/plain.c" -o "$work/program" "${flags[@]}"
    expect program 'client: 0' "$("$work/program" "$work/door")"
    ;;
  exports)
    others=$(nm -D --defined-only --format=posix "$lib/libfarcall-doors-plain.so" |
      awk '$2 != "A" { sub(/@.*/, "", $1); print $1 }' |
      grep -Ev '^(door_[a-z_]+|fattach|fdetach|ucred_[a-z_]+|farcall_[a-z_]+)$' || true)
    expect nm '' "$others"
    # What is local to the one must not be global to programs with the archive.
    others=$(nm --defined-only --extern-only --format=posix "$lib/libfarcall-doors-plain.a" |
      awk 'NF > 2 && $2 ~ /[TDBRC]/ { print $1 }' |
      grep -Ev '^(door_[a-z_]+|fattach|fdetach|ucred_[a-z_]+|farcall_[a-z_]+|_Z.*7farcall.*)$' || true)
    expect 'nm of the archive' '' "$others"
    ;;
  find_package)
    cmake -S "$sources/plain" -B "$work/build" -D CMAKE_PREFIX_PATH="$work/prefix" >/dev/null
    cmake --build "$work/build" >/dev/null
    for program in plain plain-static; do
      expect $program 'client: 0' "$("$work/build/$program" "$work/door")"
    done
    ;;
esac
