#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The figure of the 1998 paper on doors for Linux, on this machine: round trips against message
# size, for doors, pipes, Unix sockets and ONC RPC. Builds, measures, draws, sums up.
# Usage: scripts/paper_1998.sh [--quick|--tiny] [--out=DIR] [--farcall=FILE] [--help] [FLAG...]
#
#   --quick          a minute or two instead of five: a look, not a result
#   --tiny           seconds, for three sizes: shows that it works, its figures mean nothing
#   --out=DIR        where results.json, plot.png and summary.md go; build/paper-1998 otherwise
#   --farcall=FILE   measures with this farcall instead of building one
#   FLAG             --rounds=N, --placement=PLACE,..., --seed=N: as in farcall-compare(1)
#
# All rows are measured in turn, in several rounds, in an order that changes. Leave the machine
# alone meanwhile.
set -euo pipefail
called_from=$PWD
cd "$(dirname "$(realpath "$0")")/.."

# A path as the caller sees it.
from_there() { if [[ $1 == /* ]]; then echo "$1"; else echo "$called_from/$1"; fi; }

out=build/paper-1998 farcall=
sizes=1,64,256,1K,4K,16K,64K,256K,1M,4M,16M placement=two-cpus,one-cpu
effort=() flags=()
for argument in "$@"; do
  case $argument in
    --help | -h)
      sed -n '4,/^set/{/^set/d;s/^# \{0,1\}//p;}' "$0"
      exit
      ;;
    --quick) effort=(--quick --rounds 3) ;;
    --tiny) effort=(--budget 4 --rounds 2) sizes=1,64,64K ;;
    --out=?*) out=$(from_there "${argument#--out=}") ;;
    --farcall=?*) farcall=$(from_there "${argument#--farcall=}") ;;
    --placement=?*) placement=${argument#--placement=} ;;
    --rounds=?* | --seed=?*) flags+=("${argument%%=*}" "${argument#*=}") ;;
    *)
      echo "paper_1998: unknown argument '$argument'; see --help" >&2
      exit 2
      ;;
  esac
done
# The command takes an option once: what is said last counts.
if [[ " ${flags[*]} " == *" --rounds "* ]]; then
  kept=()
  for ((i = 0; i < ${#effort[@]}; ++i)); do
    if [[ ${effort[i]} == --rounds ]]; then ((++i)); else kept+=("${effort[i]}"); fi
  done
  effort=("${kept[@]}")
fi

if [[ -z $farcall ]]; then
  scripts/setup.sh build plot
  cmake --preset release >/dev/null
  cmake --build --preset release --target farcall-tool
  farcall=build/release/farcall
elif [[ ! -x $farcall ]]; then
  echo "paper_1998: '$farcall' is no program; leave --farcall away to have one built" >&2
  exit 2
fi

# Doors, or the calls that they are made of where this farcall has no doors.
doors=call
rows=$("$farcall" compare --list)
if awk '$1 == "door_call" && $2 != "absent" { found = 1 } END { exit !found }' <<<"$rows"; then
  doors=door_call
fi

mkdir -p "$out"
# The table is kept beside the rest: a terminal has no use for that many of them.
"$farcall" compare --rows "$doors,pipe,unix_stream,onc_rpc,sysv_mq,posix_mq" --wait adaptive \
  --sizes "$sizes" --placement "$placement" --json "$out/results.json" \
  "${effort[@]}" "${flags[@]}" >"$out/table.txt"
/usr/bin/python3 scripts/plot_paper_1998.py "$out/results.json" \
  --plot "$out/plot.png" --summary "$out/summary.md"
cat "$out/summary.md"
echo
echo "results: $out/results.json, $out/plot.png, $out/summary.md"
