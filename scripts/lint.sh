#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Checks format, sources and scripts. Usage: scripts/lint.sh [--changed]
# With --changed only files that differ from the last commit are looked at.
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."

command -v git >/dev/null || scripts/setup.sh lint
git=(git -c "safe.directory=$PWD")
if [[ ${1:-} == --changed ]]; then
  list_files() { "${git[@]}" diff --name-only --diff-filter=d HEAD && "${git[@]}" ls-files -o --exclude-standard; }
else
  list_files() { "${git[@]}" ls-files; }
fi
list=$(list_files) # where git fails, so does this
mapfile -t files <<<"$list"

scripts/setup.sh build lint

sources=() units=() shell_scripts=()
for file in "${files[@]}"; do
  [[ -f $file ]] || continue
  case $file in
    kernel/*) ;; # kernel style is another one
    *.cpp) sources+=("$file") units+=("$file") ;;
    *.hpp | *.h | bindings/*.c) sources+=("$file") ;;
    *.sh | .ci/run | packaging/debian/tests/programs) shell_scripts+=("$file") ;;
  esac
done

failed=0
scripts/check_rooms.py || failed=1
scripts/check_sizes.py || failed=1
if ((${#sources[@]})); then
  clang-format --dry-run -Werror "${sources[@]}" || failed=1
fi
if ((${#shell_scripts[@]})); then
  shellcheck "${shell_scripts[@]}" || failed=1
fi
if ((${#units[@]})); then
  # Without precompiled headers: a file that lacks an include is told of, and clang cannot read gcc's.
  lint_build=build/lint
  cmake --preset dev -B "$lint_build" -D CMAKE_DISABLE_PRECOMPILE_HEADERS=ON >/dev/null
  if grep -qF farcall-rpc-sources: "$lint_build/build.ninja"; then
    cmake --build "$lint_build" --target farcall-rpc-sources >/dev/null
  fi
  # Only what the build compiles has a command line; headers are seen through their users. The
  # command lines are for gcc, some of whose warnings clang does not know.
  compiled=()
  for unit in "${units[@]}"; do
    if grep -qF "\"$PWD/$unit\"" "$lint_build/compile_commands.json"; then compiled+=("$unit"); fi
  done
  printf '%s\0' "${compiled[@]}" |
    xargs -0r -n1 -P"$(nproc)" clang-tidy -p "$lint_build" --quiet \
      --extra-arg=-Wno-unknown-warning-option 2> >(grep -v ' warnings generated' >&2) || failed=1
fi
exit $failed
