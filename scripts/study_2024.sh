#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The 2024 study of Linux mechanisms, on this machine: builds, measures, draws, sums up.
# Usage: scripts/study_2024.sh [--quick] [--out=DIR] [--help] [FLAG...]
#
#   --quick     a minute instead of the study's warm-up and repetitions: a look, not a result
#   --out=DIR   where results.json, plot.png and summary.md go; build/study_2024 otherwise
#   FLAG        anything for Google Benchmark, such as --benchmark_filter=^study/
#
# The whole takes some 8 seconds for each of about 200 benchmarks, half an hour. On a machine that
# has other work too, --benchmark_enable_random_interleaving=true spreads that over all alike, but
# prints nothing until the end.
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."

out=build/study_2024
flags=()
for argument in "$@"; do
  case $argument in
    --help | -h)
      sed -n '4,/^set/{/^set/d;s/^# \{0,1\}//p;}' "$0"
      exit
      ;;
    --quick)
      flags+=(--benchmark_min_warmup_time=0 --benchmark_min_time=0.02 --benchmark_repetitions=3)
      ;;
    --out=?*) out=${argument#--out=} ;;
    --benchmark_*) flags+=("$argument") ;;
    *)
      echo "study_2024: unknown argument '$argument'; see --help" >&2
      exit 2
      ;;
  esac
done

scripts/setup.sh build plot
cmake --preset release >/dev/null
cmake --build --preset release --target study-2024

# The study turned address randomisation off; where that is forbidden, the JSON says so.
run=(setarch -R)
"${run[@]}" true 2>/dev/null || run=()

mkdir -p "$out"
"${run[@]}" build/release/bench/study-2024 \
  --benchmark_out="$out/results.json" --benchmark_out_format=json "${flags[@]}"
/usr/bin/python3 scripts/plot_study_2024.py "$out/results.json" \
  --plot "$out/plot.png" --summary "$out/summary.md"
cat "$out/summary.md"
echo
echo "results: $out/results.json, $out/plot.png, $out/summary.md"
