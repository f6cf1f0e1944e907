#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Runs foreign programs with the preload library, and without.

Usage: run.py [--farcall PATH] [--mix MIX,...] [--seconds N] [--seed N] [--list] TEST...

A mix says which end is accelerated: plain, both, server, client. Tells a skip to CTest as
GoogleTest would, with exit code 77.
"""

import argparse
import os
import sys
import time
import traceback

sys.dont_write_bytecode = True  # the sources may belong to somebody else

# pylint: disable=wrong-import-position
import desktop
import figures
import gateways
import isolation
import languages
import paths
import pipes
import proxies
import servers
import web
from ends import MIXES, Failed, Sandbox, Skip

TESTS = {**pipes.TESTS, **servers.TESTS, **web.TESTS, **languages.TESTS,
         **paths.TESTS, **isolation.TESTS, **gateways.TESTS, **desktop.TESTS, **proxies.TESTS,
         **figures.TESTS}
SKIPPED = 77


def run_one(name, mix, options):
    """passed, skipped or failed."""
    title, began = f"{name} ({mix})", time.monotonic()
    try:
        with Sandbox(options.farcall, MIXES[mix], options.seconds,
                     options.seed) as box:
            TESTS[name](box)
    except Skip as reason:
        print(f"{title}: Skipped\n{reason}\n[  SKIPPED ] {title}", flush=True)
        return "skipped"
    except Failed as failure:
        print(f"[  FAILED  ] {title}\n{failure}", flush=True)
        return "failed"
    except Exception:  # pylint: disable=broad-except
        print(f"[  FAILED  ] {title}\n{traceback.format_exc()}", flush=True)
        return "failed"
    print(f"[       OK ] {title} ({time.monotonic() - began:.1f} s)", flush=True)
    return "passed"


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--farcall", default="farcall", help="the command")
    parser.add_argument("--mix", default="both,server,client", help=", ".join(MIXES))
    parser.add_argument("--seconds", type=int, help="how long each program is kept busy")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(3), "big"))
    parser.add_argument("--list", action="store_true")
    parser.add_argument("tests", nargs="*", metavar="TEST")
    options = parser.parse_args()
    if "/" in options.farcall:
        options.farcall = os.path.abspath(options.farcall)
    if options.list:
        print(*TESTS, sep="\n")
        return 0
    print(f"seed {options.seed}")
    results = [run_one(name, mix, options) for name in options.tests or TESTS
               for mix in options.mix.split(",")]
    if "failed" in results:
        return 1
    return 0 if "passed" in results else SKIPPED


if __name__ == "__main__":
    sys.exit(main())
