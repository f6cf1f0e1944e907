#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the few tests of a CTest run that have failed again, alone, to tell whether they fail always.

Usage: run_again.py PRESET FOLDER
FOLDER has what the run has left: tests.xml, and tests.log with what CTest said. Each test that is
looked at again has to pass three times in a row with nothing beside it. again.xml says how that went;
test_summary.py names what has passed there as unsteady; it counts as failed all the same, or apart.

What crashed, hung, or was reported by a sanitizer is a fault, however seldom: it stays failed, also
where it was a process of the test that did so, as far as the test says it. So does everything where
more than five tests failed, or a test that is too long to be run three times.
"""

import pathlib
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import test_summary

TIMES = 3
MOST = 5  # tests of a run
LONGEST = 60  # seconds that such a test may have taken
CRASHED = re.compile(r"SIG(SEGV|ABRT|BUS|ILL|FPE)|signal (4|6|7|8|11)\b|core dumped|terminate called|"
                     r"[Ss]egmentation fault|Aborted|\bhangs?\b|\bhung\b|corrupt")
ENDED = re.compile(r"^\s*\d+ - (\S+) \((.*)\)$", re.MULTILINE)


def candidates(xml, log):
    """The names of the tests that are to be run again; `xml` and `log` are texts."""
    # How each has ended stands in the log alone, in its last lines.
    how = dict(ENDED.findall(log.rpartition("The following tests FAILED:")[2]))
    failed = []
    for case in ElementTree.fromstring(xml).iter("testcase"):
        result, detail = test_summary.outcome(case)
        if result != "failed":
            continue
        failed.append((case.get("name"), float(case.get("time") or 0), detail))
    if len(failed) > MOST:
        return []
    return [name for name, seconds, detail in failed
            if how.get(name) == "Failed" and seconds <= LONGEST
            and not test_summary.SANITIZER_REPORT.search(detail) and not CRASHED.search(detail)]


def main(arguments):
    preset, folder = arguments[0], pathlib.Path(arguments[1]).resolve()
    again = folder / "again.xml"
    again.unlink(missing_ok=True)
    try:
        names = candidates((folder / "tests.xml").read_text(encoding="utf-8"),
                           (folder / "tests.log").read_text(encoding="utf-8", errors="replace"))
    except (OSError, ElementTree.ParseError):
        return  # which the summary tells of
    if not names:
        return
    print(f"{preset}: once more: {', '.join(names)}", flush=True)
    escaped = "|".join(re.sub(r"([^\w/])", r"\\\1", name) for name in names)
    with open(folder / "again.log", "wb") as log:
        subprocess.run(["ctest", "--preset", preset, "-j", "1", "-R", f"^({escaped})$",
                        "--repeat", f"until-fail:{TIMES}", "--output-junit", str(again)],
                       stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, check=False)


if __name__ == "__main__":
    main(sys.argv[1:])
