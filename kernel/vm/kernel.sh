#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# Where a kernel is: prints the folder to build modules against, and the image to boot.
# Usage: kernel.sh SERIES|debug. Exit status 77: it cannot be had here.
set -euo pipefail
here=$(dirname "$(realpath "$0")")

case $1 in
  debug) exec "$here/debug_kernel.sh" --cached ;;
  [0-6].*) exec "$here/fetch.sh" "$1" ;;
  *) exec "$here/newer.sh" "$1" ;;
esac
