#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Calls every service once over each transport, and holds what came against what should have.
# Usage: try.sh FOLDER
set -euo pipefail
here=$(dirname "$(realpath "$0")")
sums='7 + 2 = 9, 7 - 2 = 5, 7 * 2 = 14, 7 / 2 = 3
7 / 0: divided by zero'
thrift="ping 0.1.0
ping: PONG
$sums
tick 0
tick 1
tick 2
after stop: -1"
tried=0
for transport in tsocket farcall dbus; do
  status=0
  said=$("$here/run.sh" "$1" call "$transport") || status=$?
  ((status != 77)) || continue
  expected=$thrift
  [[ $transport != dbus ]] || expected="ping: PONG
$sums
ticks: 3"
  if ((status != 0)) || [[ $said != "$expected" ]]; then
    echo "$transport: status $status, said: $said" >&2
    exit 1
  fi
  tried=$((tried + 1))
done
((tried > 0)) || exit 77
