#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Turns TAP into a JUnit XML like CTest's, on stdout.

Usage: tap_to_junit.py [--status N] NAME=TAP_FILE...
       tap_to_junit.py --skip REASON | --fail OUTPUT

A TAP file may hold several programs one after the other, each with its plan. A plan that was not
fulfilled is a failure, and so is a status other than 0 when no single test failed.
"""

import argparse
import re
import xml.etree.ElementTree as ElementTree


def clean(text):
    """What XML may hold: a guest can print anything."""
    return re.sub(r"[^\t\n\x20-\x7e]", "?", text)


def add(suite, name, outcome, output=""):
    case = ElementTree.SubElement(
        suite, "testcase", name=clean(name), status="fail" if outcome == "fail" else "run")
    if outcome == "skip":
        case.set("status", "notrun")
        ElementTree.SubElement(case, "skipped")
        output = f"kernel: Skipped\n{output.strip()}\n\n[  SKIPPED ] {name}"
    elif outcome == "fail":
        ElementTree.SubElement(case, "failure")
    ElementTree.SubElement(case, "system-out").text = clean(output)


def read_tap(suite, name, text):
    """Adds a case for each line of TAP. Returns whether any failed."""
    failed, said, open_plan = False, [], 0
    for line in text.splitlines():
        plan = re.match(r"1\.\.(\d+)$", line)
        result = re.match(r"(not )?ok(?: (\d+))? - (.*?)(?: # SKIP (.*))?$", line)
        if plan or (result and not result[2] and open_plan):
            if open_plan:
                failed = True
                add(suite, f"{name}: every test ran", "fail", "\n".join(said[-60:]))
            open_plan = 0
        if plan:
            open_plan = int(plan[1])
        if not result:
            said.append(line)
            continue
        if result[2]:
            open_plan -= 1
        if result[1]:
            failed = True
            add(suite, f"{name}: {result[3]}", "fail", "\n".join(said[-60:]))
        elif result[4]:
            reason = [l.removeprefix("# skip: ") for l in said if l.startswith("# skip: ")]
            add(suite, f"{name}: {result[3]}", "skip", reason[-1] if reason else result[4])
        else:
            add(suite, f"{name}: {result[3]}", "run")
        said = []
    if open_plan:
        failed = True
        add(suite, f"{name}: every test ran", "fail", "\n".join(said[-60:]))
    return failed


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--skip")
    parser.add_argument("--fail")
    parser.add_argument("--status", type=int, default=0)
    parser.add_argument("taps", nargs="*")
    arguments = parser.parse_args()

    suite = ElementTree.Element("testsuite", name="kernel")
    failed = False
    if arguments.skip is not None:
        add(suite, "kernel module", "skip", arguments.skip)
    elif arguments.fail is not None:
        add(suite, "kernel module", "fail", arguments.fail)
    for tap in arguments.taps:
        name, path = tap.split("=", 1)
        with open(path, encoding="utf-8", errors="replace") as file:
            failed |= read_tap(suite, name, file.read())
    if arguments.status and not failed and arguments.taps:
        add(suite, "kernel module", "fail", f"the run ended with status {arguments.status}")
    print(ElementTree.tostring(suite, encoding="unicode"))


if __name__ == "__main__":
    main()
