#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# A door of one machine called on another. Both machines are this one here: each has a bridge of its own,
# and they meet nowhere but at the NATS server. two_machines.sh FARCALL (the command).
set -euo pipefail
farcall=${1:-farcall}
command -v nats-server >/dev/null || PATH=$PATH:/usr/sbin
if ! command -v nats-server >/dev/null; then
  echo "there is no nats-server"
  exit 77
fi
work=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; wait; rm -rf "$work"' EXIT

nats-server -a 127.0.0.1 -p -1 --ports_file_dir "$work" >"$work/nats.log" 2>&1 &
for _ in {1..500}; do
  url=$(grep -o 'nats://[^"]*' "$work"/*.ports 2>/dev/null) && break
  sleep 0.02
done

# alpha: a service, and a bridge that exports it
"$farcall" door serve "$work/upper" -- tr a-z A-Z &
"$farcall" bridge --nats "$url" --status-name "alpha-$$" --export "door:$work/upper=text.upper" &
# beta: a bridge that imports it, as a door and as a channel
"$farcall" bridge --nats "$url" --status-name "beta-$$" --import "text.upper=door:$work/far" \
  --import "text.upper=channel:upper-$$" &

for _ in {1..500}; do
  answer=$("$farcall" door call "$work/far" hello 2>/dev/null) && break
  sleep 0.02
done
echo "by the door: $answer"
echo "by the channel: $("$farcall" channel send "upper-$$" hello)"
"$farcall" bridge status --status-name "beta-$$"
[[ $answer == HELLO ]]
