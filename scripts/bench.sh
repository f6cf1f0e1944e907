#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The full measurements: every mechanism, size and placement, one writer to many readers, many
# clients, doors under load, Python beside what it has, then the 2024 study, then a page.
# Usage: scripts/bench.sh [--quick] [--no-compare] [--no-study] [--help]
#
#   --quick        minutes instead of more than an hour; a look, not a result
#   --no-compare   keep the comparison of the last run, measure the study only
#   --no-study     keep the study of the last run, measure the comparison only
#
# Results in build/bench/: report.html, which has all of them and needs no network; compare.json and
# compare.png, the same and .txt of broadcast and of scaling, doors.txt, python.txt, steps.json and
# steps.png (a scheduler and its workers), study/. Leave the machine alone meanwhile.
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."

compare=yes study=yes quick=()
for argument in "$@"; do
  case $argument in
    --help | -h)
      sed -n '4,/^set/{/^set/d;s/^# \{0,1\}//p;}' "$0"
      exit
      ;;
    --quick) quick=(--quick) ;;
    --no-compare) compare=no ;;
    --no-study) study=no ;;
    *)
      echo "bench: unknown argument '$argument'; see --help" >&2
      exit 2
      ;;
  esac
done

# The dynamic linker takes blanks and colons in LD_PRELOAD as ends of names.
if [[ $PWD == *[\ :]* ]]; then
  echo "bench: nothing below '$PWD' can be preloaded, as it has a blank or a colon; move the tree to a folder without" >&2
  exit 1
fi
# What is measured or tested on this machine is not to go through a proxy.
export no_proxy="${no_proxy:+$no_proxy,}127.0.0.1,::1,localhost"
export PYTHONDONTWRITEBYTECODE=1 # what is packed may be this tree

# A row that fails leaves the others their page.
failed=0
out=build/bench
mkdir -p "$out"
scripts/setup.sh build peers plot bench
cmake --preset release >/dev/null
cmake --build --preset release --target farcall-tool bench-doors farcall-python

load=$(cut -d' ' -f1 /proc/loadavg)
if awk -v load="$load" 'BEGIN { exit !(load > 0.5) }'; then
  echo "bench: the load is $load already; the figures will show it" >&2
fi

if [[ $compare == yes ]]; then
  build/release/farcall compare --json "$out/compare.json" --plot "$out/compare.png" "${quick[@]}" ||
    failed=1
  build/release/farcall compare --workload broadcast --json "$out/broadcast.json" \
    --plot "$out/broadcast.png" "${quick[@]}" | tee "$out/broadcast.txt" || failed=1
  build/release/farcall compare --workload scaling --json "$out/scaling.json" \
    --plot "$out/scaling.png" "${quick[@]}" | tee "$out/scaling.txt" || failed=1
  build/release/bench/bench-doors | tee "$out/doors.txt" || failed=1
  export PYTHONPATH=build/release/python
  /usr/bin/python3 bench/python_compare.py "${quick[@]}" | tee "$out/python.txt" || failed=1
  /usr/bin/python3 bench/python_steps.py ${quick:+--steps 200 --rounds 1} \
    --json "$out/steps.json" --plot "$out/steps.png" | tee -a "$out/python.txt" || failed=1
fi
if [[ $study == yes ]]; then
  scripts/study_2024.sh --out="$out/study" "${quick[@]}" || failed=1
fi

# What a run has left out is shown from the last run that had it.
if [[ ! -f $out/compare.json ]]; then
  echo "bench: no comparison has been measured yet, so there is no page" >&2
  exit "$failed"
fi
/usr/bin/python3 scripts/bench_report.py "$out"
echo "bench: the page is $out/report.html"
exit "$failed"
