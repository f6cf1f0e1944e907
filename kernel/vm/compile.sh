#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# Compiles a program for the guest: static, with libstplr. Usage: compile.sh SOURCE OUTPUT
set -euo pipefail
kernel=$(dirname "$(dirname "$(realpath "$0")")")
gcc -static -O2 -Wall -Wextra -Wno-unused-parameter -Werror -pthread -I"$kernel/include" \
  "$1" "$kernel/lib/libstplr.c" -o "$2"
