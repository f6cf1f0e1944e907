#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs one of the services' programs against its server: starts the server, and for D-Bus a bus of
# its own, waits until it can be called, calls, and ends what it has started.
# Usage: run.sh FOLDER call|measure dbus|tsocket|farcall [SERVER_CPU CLIENT_CPU]
# Exit status: 77 if the program or the bus is not there.
set -euo pipefail
folder=$1 what=$2 transport=$3
on_server=() on_client=() on_either=()
if (($# == 5)); then
  on_server=(taskset -c "$4") on_client=(taskset -c "$5") on_either=(taskset -c "$4,$5")
fi

work=$(mktemp -d)
started=()
# shellcheck disable=SC2317 # the trap calls it
finish() {
  ((${#started[@]} == 0)) || kill "${started[@]}" 2>/dev/null || true
  rm -rf "$work"
}
trap finish EXIT

case $transport in
  dbus)
    [[ -x $folder/rpc-dbus ]] && command -v dbus-daemon >/dev/null || exit 77
    program=$folder/rpc-dbus where=()
    ;;
  *)
    [[ -x $folder/rpc-thrift ]] || exit 77
    program=$folder/rpc-thrift where=("$transport")
    if [[ $transport == farcall ]]; then
      where+=("rpc-$$")
    else
      # A port that is free now; whoever takes it meanwhile makes this fail, not lie.
      where+=("$((20000 + $$ % 20000))")
    fi
    ;;
esac

if [[ $transport == dbus ]]; then
  mkfifo "$work/address"
  "${on_either[@]}" dbus-daemon --session --nofork --address="unix:path=$work/bus" --print-address=3 3>"$work/address" \
    2>"$work/bus.log" &
  started+=($!)
  read -r DBUS_SESSION_BUS_ADDRESS <"$work/address"
  export DBUS_SESSION_BUS_ADDRESS
fi

mkfifo "$work/ready"
"${on_server[@]}" "$program" serve "${where[@]}" >"$work/ready" &
started+=($!)
read -r -t 10 ready <"$work/ready"
[[ $ready == ready ]]
# Thrift announces itself just before it listens.
for try in 1 2 3 4 5; do
  if "${on_client[@]}" "$program" "$what" "${where[@]}" 2>"$work/error"; then exit 0; fi
  grep -qE 'refused|No such file' "$work/error" || break
  sleep "0.$try"
done
cat "$work/error" >&2
exit 1
