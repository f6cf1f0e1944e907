#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Adds up the outcomes of several CTest runs.

Usage: test_summary.py [--may-skip LIST] [--tolerate-unsteady] NAME=JUNIT_XML...
Prints a line per run with what its failed tests said, the slowest tests, every reason for a skip, the
names of what failed and, last, the sums. With a list (tests/may_skip.txt), a skip that is not on it is
a failure. What failed among others and passes alone (again.xml beside the XML, of run_again.py) has
failed, and is named as unsteady; with --tolerate-unsteady it is counted apart. Exits with 1 if anything failed.
"""

import argparse
import collections
import fnmatch
import os
import re
import sys
import xml.etree.ElementTree as ElementTree

# The head of a report, not a mere mention of a sanitizer, as reasons for skips have it.
SANITIZER_REPORT = re.compile(r"(ERROR|WARNING|SUMMARY): \w+Sanitizer|: runtime error: ")
# Valgrind's, which ends what it has reported of with a status of its own, that CTest does not tell of
# where a test has skipped. It is started so that it says little else.
VALGRIND_REPORT = re.compile(r"^==\d+== (?!Warning: )", re.MULTILINE)
# What no test brings about on purpose, as crashes and too large allocations are: in a test that has
# passed all the same it was a process of it that nobody has asked how it ended.
REPORT_OF_A_PROCESS = re.compile(
    r"(ERROR|WARNING): \w+Sanitizer: (data race|heap-use-after-free|double-free|"
    r"((heap|stack|global)(-buffer-(over|under)flow|-use-after-\w+))|detected memory leaks)|"
    r": runtime error: ")
SKIPPED_IN_PART = re.compile(r"^\[  SKIPPED \] ", re.MULTILINE)
OUTPUT_LINES = 40  # of a failed test; the XML and the log beside it hold the rest
LAST_LINES = 10  # of those, said once more at the end, where nobody overlooks them
SLOWEST = 10


def skip_reasons(output):
    """The texts given to GTEST_SKIP, which GoogleTest prints after the place of the skip, a line each."""
    found = re.findall(r": Skipped\n(.*?)\n*\[  SKIPPED \]", output, re.DOTALL)
    return "\n".join(dict.fromkeys(" ".join(reason.split()) or "no reason given"
                                   for reason in found)) or "no reason given"


def outcome(case):
    """Returns (passed | failed | skipped, detail) of a <testcase>."""
    output = case.findtext("system-out") or ""
    status = case.get("status")
    if status == "run" and not REPORT_OF_A_PROCESS.search(output):
        # One that runs several things may have skipped some, and passes for the others.
        return ("skipped", skip_reasons(output)) if SKIPPED_IN_PART.search(output) else ("passed", "")
    if status == "disabled":
        return "skipped", "disabled in its source"
    # CTest calls a test skipped that skipped and then failed or left a leak behind.
    broken = ("[  FAILED  ]" in output or SANITIZER_REPORT.search(output) or
              VALGRIND_REPORT.search(output))
    if case.find("skipped") is not None and "[  SKIPPED ]" in output and not broken:
        return "skipped", skip_reasons(output)
    if case.get("time"):  # tells a timeout from a crash, which the XML does not
        output += f"\nended after {float(case.get('time')):.1f} s"
    return "failed", output.strip()


def read_cases(path):
    """All (name, seconds, outcome, detail) of a run; a run without a single test is a failure."""
    try:
        cases = [(c.get("name"), float(c.get("time") or 0), *outcome(c))
                 for c in ElementTree.parse(path).iter("testcase")]
    except (OSError, ElementTree.ParseError) as error:
        return [("the run itself", 0, "failed", str(error))]
    return cases or [("the run itself", 0, "failed", "there are no tests")]


def passed_again(path):
    """The names of the tests that have passed when they were run again."""
    again = os.path.join(os.path.dirname(path), "again.xml")
    if not os.path.exists(again):
        return set()
    cases = read_cases(again)
    return {name for name, _, result, _ in cases if result == "passed"} - {
        name for name, _, result, _ in cases if result != "passed"}


def read_list(path):
    """All (run, who, reason) of a list of skips: a glob, "all" or "user", and a compiled expression."""
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            if line.strip() and not line.startswith("#"):
                run, who, reason = line.split(maxsplit=2)
                yield run, who, re.compile(reason.strip())


def read_permitted(path):
    """All (run, reason) that are permitted to who runs this."""
    return [(run, reason) for run, who, reason in read_list(path)
            if who == "all" or (who == "user" and os.geteuid() != 0)]


def judge_skips(run, cases, permitted):
    """The cases of a run; what skipped without permission has failed."""
    for name, seconds, result, detail in cases:
        if result == "skipped" and not all(
                any(fnmatch.fnmatch(run, glob) and reason.fullmatch(line)
                    for glob, reason in permitted) for line in detail.split("\n")):
            yield name, seconds, "failed", f"skipped, which tests/may_skip.txt forbids: {detail}"
        else:
            yield name, seconds, result, detail


def main(arguments):
    parser = argparse.ArgumentParser()
    parser.add_argument("--may-skip", type=read_permitted, default=[("*", re.compile(".*"))])
    parser.add_argument("--tolerate-unsteady", action="store_true",
                        help="what passes when it is run again, alone, is no failure of the whole")
    parser.add_argument("runs", nargs="+")
    arguments = parser.parse_args(arguments)
    total = collections.Counter()
    skipped = collections.defaultdict(list)
    times = []
    ends = []  # what is worth a line at the end
    for run, path in (argument.split("=", 1) for argument in arguments.runs):
        cases = list(judge_skips(run, read_cases(path), arguments.may_skip))
        steady = passed_again(path)
        cases = [(name, seconds, "unsteady" if result == "failed" and name in steady else result, detail)
                 for name, seconds, result, detail in cases]
        times += [(seconds, f"{run} {name}") for name, seconds, _, _ in cases]
        count = collections.Counter(result for _, _, result, _ in cases)
        if not arguments.tolerate_unsteady:
            count["failed"] += count.pop("unsteady", 0)
        total += count
        print(f"{run}: {count['passed']} passed, {count['failed']} failed, "
              f"{count['skipped']} skipped")
        for name, _, result, detail in cases:
            if result == "skipped":
                for reason in detail.split("\n"):
                    skipped[reason].append(f"{run} {name}")
            elif result in ("failed", "unsteady"):
                print(f"{result.upper()} {run}: {name}, see {path.removesuffix('.xml')}.log")
                ends.append(f"failed: {run} {name}" if result == "failed" else
                            f"unsteady: {run} {name} failed once, then passed three times alone")
                lines = [f"    {line}" for line in detail.splitlines()[-OUTPUT_LINES:]]
                print(*lines, sep="\n")
                if result == "failed":
                    ends += lines[-LAST_LINES:]
    print("slowest:", ", ".join(f"{name} {seconds:.0f} s"
                                for seconds, name in sorted(times, reverse=True)[:SLOWEST]))
    for reason, names in skipped.items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        print(f"skipped: {reason}: {names[0]}{more}")
    for end in ends:
        print(end)
    tolerated = f", {total['unsteady']} unsteady" if total["unsteady"] else ""
    print(f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped{tolerated}")
    return 1 if total["failed"] or not total else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
