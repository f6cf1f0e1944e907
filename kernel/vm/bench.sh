#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# Measures round trips, sizes and crowds in an emulated machine, and then once more round trips of
# 64 bytes where every instruction takes a nanosecond, whatever else the host does: there a
# microsecond is a thousand instructions. Usage: bench.sh [SERIES...]    (default: 6.1 6.12)
# BENCH_APPEND=ROUNDTRIP_SIZE=64 measures only that size, and ROUNDTRIP_SPIN says for how many microseconds
# those threads spin that do before they sleep.
# Times mean nothing by themselves there; ratios within one guest do. Fails if a benchmark did.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
bin=$(realpath "$here/../..")/build/kernel/tests

mkdir -p "$bin"
for program in roundtrip scale; do
  "$here/compile.sh" "$here/../bench/$program.c" "$bin/$program"
done
series=("$@")
((${#series[@]})) || series=(6.1 6.12)
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# run ARGUMENT...: a guest, which may come to its end although a program in it did not.
run() {
  "$here/boot.sh" --by-words --seconds 400 "$@" | tee "$log"
  ! grep -q '^not ok' "$log"
}

for one in "${series[@]}"; do
  mapfile -t kernel < <("$here/kernel.sh" "$one")
  [[ ${#kernel[@]} == 2 ]] || exit 77
  module=$("$here/build.sh" "$one")
  run --append "${BENCH_APPEND:-}" "${kernel[1]}" "$module" "$bin/"{roundtrip,scale}
  echo "# instructions, by the thousand"
  run --icount --append ROUNDTRIP_SIZE=64 "${kernel[1]}" "$module" "$bin/roundtrip"
done
