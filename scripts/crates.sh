#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Makes the packages of the Rust crates, in PLACE/dist, and builds and runs a program with what is
# in them.
# Usage: scripts/crates.sh LIBRARIES [PLACE]    (PLACE: build/crates by default)
#
# LIBRARIES is the folder that libfarcall-c.so is in. Nothing is fetched: what the crates depend on
# is of Debian's packages (librust-*-dev). CARGO names another cargo than Debian's.
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."

libraries=$(realpath "$1")
place=$(realpath -m "${2:-build/crates}")
cargo=$(realpath -s "${CARGO:-/usr/bin/cargo}")
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' bindings/rust/farcall/Cargo.toml)

# A registry that has Debian's crates and, as soon as they are made, ours.
registry=$place/registry
rm -rf "$registry" "$place"/{tree,dist,consumer}
mkdir -p "$registry" "$place"/{home,tree,dist}
ln -s /usr/share/cargo/registry/* "$registry"
cat >"$place/home/config.toml" <<CONFIG
[source.crates-io]
replace-with = "local"
[source.local]
directory = "$registry"
[net]
offline = true
CONFIG
# The compiler beside it, not the first one of the path.
export CARGO_HOME=$place/home CARGO_TARGET_DIR=$place/target CARGO_TERM_COLOR=never
export RUSTC=${cargo%/*}/rustc
export FARCALL_LIB_DIR=$libraries LD_LIBRARY_PATH=$libraries

scripts/sources.sh list LICENSE bindings/rust |
  xargs -0 cp --parents --no-dereference -t "$place/tree"

make_crate() { # NAME
  local file=$CARGO_TARGET_DIR/package/$1-$version.crate
  # Whether it can be built is seen below, of what is in the package.
  (cd "$place/tree/bindings/rust" && "$cargo" package --quiet --no-verify --allow-dirty -p "$1")
  tar -xzf "$file" -C "$registry"
  printf '{"files":{},"package":"%s"}\n' "$(sha256sum <"$file" | cut -d ' ' -f 1)" \
    >"$registry/$1-$version/.cargo-checksum.json"
  cmp LICENSE "$registry/$1-$version/LICENSE"
  cp "$file" "$place/dist"
}

make_crate farcall-sys
make_crate farcall

cp -r tests/consumer/rust "$place/consumer"
said=$(cd "$place/consumer" && RUSTFLAGS='-D warnings' "$cargo" run --quiet)
[[ $said == 'pipes, broadcasts, calls, tasks' ]] || {
  echo "crates: a program that uses them says '$said'" >&2
  exit 1
}
ls -l "$place/dist"
