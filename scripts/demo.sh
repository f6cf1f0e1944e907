#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# What each way between two processes costs on this machine, in about two minutes: the controls, the
# rings, what people use instead; and what an unmodified program gains under farcall run. Leaves build/demo/compare.json and build/demo/compare.png.
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."

# The dynamic linker takes blanks and colons in LD_PRELOAD as ends of names.
if [[ $PWD == *[\ :]* ]]; then
  echo "demo: nothing below '$PWD' can be preloaded, as it has a blank or a colon; move the tree to a folder without" >&2
  exit 1
fi
# What is measured or tested on this machine is not to go through a proxy.
export no_proxy="${no_proxy:+$no_proxy,}127.0.0.1,::1,localhost"

scripts/setup.sh build plot demo
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# Quiet while it goes well: what the demo is about comes after it.
if ! { cmake --preset release && cmake --build --preset release --target farcall-tool farcall-preload; } \
  >"$log" 2>&1 </dev/null; then
  tail -n 40 "$log" >&2
  exit 1
fi

mkdir -p build/demo
failed=0 # a row that fails is told of, and the rest is shown all the same
rm -f build/demo/compare.json
# A library of others that does not answer is no failure of this project.
build/release/farcall compare --quick --rows main --sizes 64,4K,64K,1M --placement two-cpus,one-cpu \
  --json build/demo/compare.json --plot build/demo/compare.png ||
  /usr/bin/python3 -c 'import json, sys
rows = json.load(open(sys.argv[1]))["rows"]
failed = [row for row in rows if "error" in row]
sys.exit(not failed or any(row["engine"] != "library" for row in failed))' build/demo/compare.json ||
  failed=1

# sockperf, as Debian has it: 64 bytes there and back, halved; its server and its client both plain,
# or both under farcall run.
port=$((20000 + RANDOM % 10000))
sockperf_figures() { # PROTOCOL COMMAND...
  local protocol=$1 options=() server out
  shift
  [[ $protocol == UDP ]] || options=(--tcp)
  port=$((port + 1))
  "$@" sockperf server -i 127.0.0.1 -p "$port" "${options[@]}" >/dev/null 2>&1 &
  server=$!
  sleep 0.5
  out=$("$@" timeout 20 sockperf ping-pong -i 127.0.0.1 -p "$port" "${options[@]}" -t 2 -m 64 \
    --mps 1000000 2>&1) || true
  kill "$server" 2>/dev/null || true
  wait "$server" 2>/dev/null || true
  [[ $out == *'percentile 50.000'* ]] ||
    printf 'demo: sockperf failed (%s, %s):\n%s\n' "$protocol" "${*##*/}" "$(tail -n 3 <<<"$out")" >&2
  awk '/percentile 50.000/ { p50 = $NF } /percentile 99.000/ { p99 = $NF }
    END { if (p50 == "") print "- -"; else print p50, p99 }' <<<"$out"
}

echo
echo "sockperf ping-pong, 64 bytes one way, in microseconds, placed by the scheduler:"
printf '%-6s %12s %12s %16s %16s\n' "" "plain p50" "plain p99" "farcall run p50" "farcall run p99"
for protocol in TCP UDP; do
  read -r plain50 plain99 < <(sockperf_figures "$protocol" env)
  read -r fast50 fast99 < <(sockperf_figures "$protocol" build/release/farcall run --)
  printf '%-6s %12s %12s %16s %16s\n' "$protocol" "$plain50" "$plain99" "$fast50" "$fast99"
  [[ $plain50 != - && $fast50 != - ]] || failed=1
done
echo
echo "The figures are in build/demo/compare.json, as a picture in build/demo/compare.png;"
echo "build/release/farcall compare --help tells how to measure more."
exit "$failed"
