#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""CPython's own tests with the preload library, compared with the same tests without.

Usage: cpython.py [--farcall PATH] [--python PATH] [--least N] [--keep FOLDER] [MODULE...]

Every test of a module must come out as it does without the library. What differs is run again,
both ways, a few times: what also varies without the library is no difference.
"""

import argparse
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree

MODULES = ("test_socket test_select test_selectors test_poll test_epoll test_asyncio "
           "test_socketserver test_ssl test_httplib test_multiprocessing_fork test_subprocess "
           "test_eintr").split()
SKIPPED = 77
# Waits for ever in a virtual machine whose host does not hand its own connections back.
IGNORED = ("*ThreadedVSOCKSocketStreamTest*",)


class Run:
    """One run of a module: the outcome of each test, and what the library counted."""

    def __init__(self, options, module, accelerated, only=()):
        self.folder = tempfile.TemporaryDirectory(prefix="farcall-cpython-")
        folder = pathlib.Path(self.folder.name)
        self.log, self.stats, report = folder / "log", folder / "stats.json", folder / "tests.xml"
        words = [options.python, "-m", "test", "-v", "--junit-xml", str(report),
                 "--timeout", str(options.timeout)]
        if module == "test_socketserver":
            words += ["-u", "network"]  # it means loopback
        for name in IGNORED:
            words += ["-i", name]
        for name in only:
            words += ["-m", name]
        words.append(module)
        if accelerated:
            words = [options.farcall, "run", "--stats-json", str(self.stats), "--", *words]
        began = time.monotonic()
        with open(self.log, "wb") as log:
            process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                       cwd=folder, start_new_session=True)
            try:
                self.code = process.wait(options.timeout + 60)
            except subprocess.TimeoutExpired:
                self.code = "hangs"
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
        self.seconds = time.monotonic() - began
        self.outcomes = read_outcomes(report)

    def accelerated(self):
        if not self.stats.exists():
            return 0
        return sum(endpoint["accelerated"]
                   for endpoint in json.loads(self.stats.read_text())["endpoints"])

    def tail(self, lines=60):
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def about(self, name):
        """What the log says of a failed test."""
        text = self.log.read_text(errors="replace")
        method = name.rsplit(".", 1)[-1]
        found = re.search(rf"^(?:ERROR|FAIL): {re.escape(method)} .*?(?=^=====|\Z)", text,
                          re.MULTILINE | re.DOTALL)
        return found[0][:3000] if found else ""


def read_outcomes(report):
    """{name of the test: passed, failed or skipped}, from the JUnit file."""
    try:
        cases = ElementTree.parse(report).iter("testcase")
    except (OSError, ElementTree.ParseError):
        return {}
    outcomes = {}
    for case in cases:
        name = case.get("name")
        if case.find("skipped") is not None or case.get("result") == "skipped":
            outcome = "skipped"
        elif any(case.find(kind) is not None for kind in ("error", "failure")):
            outcome = "failed"
        else:
            outcome = "passed"
        outcomes[name] = outcome
    return outcomes


def differences(plain, accelerated):
    return sorted(name for name in plain.keys() | accelerated.keys()
                  if plain.get(name) != accelerated.get(name))


def compare(options, module):
    """The text of what differs; empty if nothing does. And how many connections were accelerated."""
    plain = Run(options, module, False)
    if not plain.outcomes:
        return f"{module} does not run without the library: {plain.tail()}", 0
    fast = Run(options, module, True)
    if options.keep:
        folder = pathlib.Path(options.keep)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{module}.plain.log").write_bytes(plain.log.read_bytes())
        (folder / f"{module}.log").write_bytes(fast.log.read_bytes())
    count = fast.accelerated()
    print(f"{module}: {len(plain.outcomes)} tests, {sum(v == 'passed' for v in plain.outcomes.values())}"
          f" pass without the library; {count} connections accelerated "
          f"({plain.seconds:.1f} s, {fast.seconds:.1f} s)", flush=True)
    if not fast.outcomes:
        return f"{module} ended with {fast.code} and no report:\n{fast.tail()}", count
    text = ""
    for name in differences(plain.outcomes, fast.outcomes):
        short = name.rsplit(".", 2)
        pattern = "*." + ".".join(short[-2:]) if len(short) > 1 else name
        again = [Run(options, module, True, [pattern]) for _ in range(2)]
        if all(run.outcomes.get(name) == plain.outcomes.get(name) for run in again):
            print(f"  {name}: once different, then twice the same", flush=True)
            continue
        before = [Run(options, module, False, [pattern]) for _ in range(3)]
        if any(run.outcomes.get(name) == again[0].outcomes.get(name) for run in before):
            print(f"  {name}: varies also without the library", flush=True)
            continue
        text += (f"{name}: {plain.outcomes.get(name)} without, {fast.outcomes.get(name)} with "
                 f"the library\n{fast.about(name)}")
    if not text and fast.code != plain.code:
        print(f"  {module}: ended with {fast.code} instead of {plain.code}", flush=True)
    return text, count


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--farcall", default="farcall", help="the command")
    parser.add_argument("--python", default="/usr/bin/python3.11")
    parser.add_argument("--timeout", type=int, default=300, help="seconds for a module")
    parser.add_argument("--least", type=int, default=1,
                        help="so many connections must have been accelerated in all")
    parser.add_argument("--keep", help="leave what the modules printed in this folder")
    parser.add_argument("modules", nargs="*", metavar="MODULE")
    options = parser.parse_args()
    if "/" in options.farcall:
        options.farcall = os.path.abspath(options.farcall)
    there = pathlib.Path(options.python).exists() and subprocess.run(
        [options.python, "-c", "import test.test_socket"], check=False,
        stderr=subprocess.DEVNULL).returncode == 0
    if not there:
        print("cpython: Skipped\nnot installed: python3.11 libpython3.11-testsuite "
              "(scripts/setup.sh programs)\n[  SKIPPED ] cpython")
        return SKIPPED
    failed, total = 0, 0
    for module in options.modules or MODULES:
        text, count = compare(options, module)
        total += count
        if text:
            failed += 1
            print(f"[  FAILED  ] {module}\n{text}", flush=True)
    if total < options.least:
        print(f"[  FAILED  ] {total} connections were accelerated, {options.least} expected")
        failed += 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
