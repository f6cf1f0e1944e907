#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# probes.sh LIBRARY PROBE... : the library has these probes of provider farcall, and no others.
set -euo pipefail
library=$1
shift
found=$(readelf --notes "$library" |
  awk '/Provider: / { ours = $2 == "farcall" } /Name: / && ours { print $2 }' | sort -u)
wanted=$(printf '%s\n' "$@" | sort -u)
if [[ $found != "$wanted" ]]; then
  printf '%s has the probes:\n%s\nand should have:\n%s\n' "$library" "$found" "$wanted"
  exit 1
fi
