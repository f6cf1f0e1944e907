#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Fails if a library (shared, or an archive) makes static objects under a guard.
# Usage: unguarded.sh NM LIBRARY
set -u
case $2 in *.so*) dynamic=-D ;; *) dynamic= ;; esac
symbols=$("$1" $dynamic --undefined-only "$2") || exit 1
[ -n "$symbols" ] || { echo "$2: no symbols" >&2; exit 1; }
case $symbols in
  *__cxa_guard_acquire*)
    echo "$2 makes a static object of a function under a guard; see MadeOnce" >&2
    exit 1 ;;
esac
