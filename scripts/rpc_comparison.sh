#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The comparison that was once published for this kind of message passing, run again here: three
# services over D-Bus, Thrift through sockets, Thrift through farcall, and, where the emulator is
# there, over the kernel module in an emulated machine. Prints the published table beside ours and
# draws a plot. Usage: scripts/rpc_comparison.sh [--build FOLDER] [--out FOLDER] [--rounds N] [--no-vm]
#
# Everything runs in one go, the transports by turns in each round; the medians are reported.
# RPC_ITERATIONS (10,000) says how often each call is made.
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."

build=build/release out=build/rpc rounds=3 vm=yes
while (($#)); do
  case $1 in
    --build) build=$2 && shift ;;
    --out) out=$2 && shift ;;
    --rounds) rounds=$2 && shift ;;
    --no-vm) vm=no ;;
    *) echo "rpc_comparison: unknown option $1" >&2 && exit 2 ;;
  esac
  shift
done
folder=$build/examples/rpc
if [[ ! -x $folder/rpc-thrift ]]; then
  echo "rpc_comparison: $folder/rpc-thrift is missing: build with libthrift-dev and thrift-compiler" >&2
  exit 77
fi
mkdir -p "$out"
results=$out/results.jsonl
: >"$results"

placements=(free one-cpu)
(($(nproc) > 1)) && placements+=(two-cpus)
for ((round = 1; round <= rounds; round++)); do
  for placement in "${placements[@]}"; do
    case $placement in
      free) cpus=() ;;
      one-cpu) cpus=(0 0) ;;
      two-cpus) cpus=(0 1) ;;
    esac
    for transport in dbus tsocket farcall; do
      echo "round $round of $rounds: $placement, $transport" >&2
      status=0
      line=$(timeout -k 5 300 examples/rpc/run.sh "$folder" measure "$transport" "${cpus[@]}") ||
        status=$?
      if ((status == 77)); then
        echo "rpc_comparison: $transport is not there and left out" >&2
      elif ((status != 0)); then
        echo "rpc_comparison: $transport failed" >&2
        exit 1
      else
        echo "{\"placement\": \"$placement\", ${line#\{}" >>"$results"
      fi
    done
  done
done

# Times in there mean nothing beside ours: only TSocket in the same guest does.
if [[ $vm == yes ]]; then
  cmake --build "$build" --target rpc-thrift-guest >"$out/guest.log" 2>&1 || vm=no
fi
if [[ $vm == yes ]]; then
  strip -o "$out/rpc-thrift-guest" "$folder/rpc-thrift-guest"
  if VM_SECONDS=280 kernel/vm/messages.sh --with "$out/rpc-thrift-guest" kernel/tests/rpc_measure \
    >"$out/guest.tap" 2>&1; then
    sed -n 's/^{"transport"/{"placement": "emulated", "transport"/p' "$out/guest.tap" >>"$results"
  else
    echo "rpc_comparison: the emulated machine is not to be had, see $out/guest.tap" >&2
  fi
fi

/usr/bin/python3 scripts/rpc_report.py "$results" --plot "$out/rpc.png"
