#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Adds up the outcomes of several CTest runs.

Usage: test_summary.py NAME=JUNIT_XML...
Prints a line per run, every failed test, every reason for a skip and, last, the sums.
Exits with 1 if anything failed.
"""

import collections
import re
import sys
import xml.etree.ElementTree as ElementTree

# The head of a report, not a mere mention of a sanitizer, as reasons for skips have it.
SANITIZER_REPORT = re.compile(r"(ERROR|WARNING|SUMMARY): \w+Sanitizer|: runtime error: ")
OUTPUT_LINES = 40  # of a failed test; the XML and the log beside it hold the rest


def skip_reason(output):
    """The text given to GTEST_SKIP, which GoogleTest prints after the place of the skip."""
    found = re.search(r": Skipped\n(.*?)\n*\[  SKIPPED \]", output, re.DOTALL)
    return " ".join(found[1].split()) if found and found[1].strip() else "no reason given"


def outcome(case):
    """Returns (passed | failed | skipped, detail) of a <testcase>."""
    output = case.findtext("system-out") or ""
    status = case.get("status")
    if status == "run":
        return "passed", ""
    if status == "disabled":
        return "skipped", "disabled in its source"
    # CTest calls a test skipped that skipped and then failed or left a leak behind.
    broken = "[  FAILED  ]" in output or SANITIZER_REPORT.search(output)
    if case.find("skipped") is not None and "[  SKIPPED ]" in output and not broken:
        return "skipped", skip_reason(output)
    if case.get("time"):  # tells a timeout from a crash, which the XML does not
        output += f"\nended after {float(case.get('time')):.1f} s"
    return "failed", output.strip()


def read_cases(path):
    """All (name, outcome, detail) of a run; a run without a single test is a failure."""
    try:
        cases = [(c.get("name"), *outcome(c)) for c in ElementTree.parse(path).iter("testcase")]
    except (OSError, ElementTree.ParseError) as error:
        return [("the run itself", "failed", str(error))]
    return cases or [("the run itself", "failed", "there are no tests")]


def main(arguments):
    total = collections.Counter()
    skipped = collections.defaultdict(list)
    for run, path in (argument.split("=", 1) for argument in arguments):
        cases = read_cases(path)
        count = collections.Counter(result for _, result, _ in cases)
        total += count
        print(f"{run}: {count['passed']} passed, {count['failed']} failed, "
              f"{count['skipped']} skipped")
        for name, result, detail in cases:
            if result == "skipped":
                skipped[detail].append(f"{run} {name}")
            elif result == "failed":
                print(f"FAILED {run}: {name}, see {path.removesuffix('.xml')}.log")
                for line in detail.splitlines()[-OUTPUT_LINES:]:
                    print(f"    {line}")
    for reason, names in skipped.items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        print(f"skipped: {reason}: {names[0]}{more}")
    print(f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped")
    return 1 if total["failed"] or not total else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
