#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Fetches the crates of the peers of `farcall compare` that are written in Rust, as their locks name
# them, into cargo's home. Usage: scripts/peer_crates.sh [--offline] CARGO
# With --offline: fails, without a word, where they are not there yet. Fails with 3 where this cargo
# is too old for them; rustc is taken to be as old.
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."

offline=()
if [[ ${1:-} == --offline ]]; then
  offline=(--offline)
  exec 2>/dev/null
  shift
fi
cargo=$1
manifest=src/compare/rows/iceoryx2/Cargo.toml

needed=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' "$manifest")
version=$("$cargo" --version | cut -d ' ' -f 2)
[[ $(printf '%s\n' "$needed" "$version" | sort -V | head -n 1) == "$needed" ]] || exit 3

"$cargo" fetch --quiet --locked "${offline[@]}" --manifest-path "$manifest" \
  --target "$(uname -m)-unknown-linux-gnu" </dev/null
