#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What scripts/test_summary.py and run_again.py make of the outcomes that CTest writes down."""

import contextlib
import io
import os
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
import run_again  # noqa: E402
import test_summary  # noqa: E402

CASE = '<testcase name="{name}" status="{status}" time="0.1">{skipped}<system-out>{output}</system-out></testcase>'
SKIPPED = "a_test.cpp:99: Skipped\n{reason}\n\n[  SKIPPED ] A.Test (0 ms)\n{after}"


def case(status, output="", skipped=False):
    return CASE.format(name="A.Test", status=status, output=output,
                       skipped='<skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/>' if skipped else "")


def skip(reason, after=""):
    return case("notrun", SKIPPED.format(reason=reason, after=after), skipped=True)


class Summary(unittest.TestCase):
    def summarize(self, *cases, may_skip=None, again=(), options=()):
        """Returns the exit status and the lines printed for one run with these cases."""
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "tests.xml"
            path.write_text("<testsuite>" + "".join(cases) + "</testsuite>")
            if again:
                (path.parent / "again.xml").write_text("<testsuite>" + "".join(again) + "</testsuite>")
            arguments = [f"release={path}"]
            if may_skip is not None:
                permitted = pathlib.Path(folder) / "may_skip.txt"
                permitted.write_text(may_skip)
                arguments = ["--may-skip", str(permitted), *arguments]
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                status = test_summary.main([*options, *arguments])
            return status, printed.getvalue().splitlines()

    def test_counts_what_passed_failed_and_was_skipped(self):
        status, lines = self.summarize(case("run"), case("fail", "boom"), skip("no such device"))
        self.assertEqual(status, 1)
        self.assertEqual(lines[-1], "1 passed, 1 failed, 1 skipped")
        self.assertIn("    boom", lines)
        # What it said last stands below it.
        self.assertEqual(lines[-4:-1], ["failed: release A.Test", "    boom", "    ended after 0.1 s"])

    def test_the_end_says_no_more_of_a_failure_than_its_last_lines(self):
        _, lines = self.summarize(case("fail", "\n".join(map(str, range(100)))))
        self.assertEqual(lines[-11:-1], [f"    {number}" for number in range(91, 100)] +
                         ["    ended after 0.1 s"])

    def test_a_skip_gives_its_reason(self):
        status, lines = self.summarize(case("run"), skip("no such device"))
        self.assertEqual(status, 0)
        self.assertIn("skipped: no such device: release A.Test", lines)

    def test_a_skip_has_failed_unless_it_is_permitted_there(self):
        for may_skip, failed in (("# a list\n\n*  all  no such .*\n", 0), ("", 1),
                                 ("tsan  all  no such device\n", 1),
                                 ("release  all  no such\n", 1),
                                 ("rel*  user  no such device\n", int(os.geteuid() == 0))):
            with self.subTest(may_skip=may_skip):
                status, lines = self.summarize(case("run"), skip("no such device"),
                                               may_skip=may_skip)
                self.assertEqual(status, failed)
                self.assertEqual(lines[-1], f"1 passed, {failed} failed, {1 - failed} skipped")

    def test_a_reason_may_name_a_sanitizer(self):
        status, lines = self.summarize(case("run"), skip("ThreadSanitizer does not know longjmp"))
        self.assertEqual(status, 0)
        self.assertEqual(lines[-1], "1 passed, 0 failed, 1 skipped")

    def test_a_skip_followed_by_a_report_has_failed(self):
        for report in ("==7==ERROR: LeakSanitizer: detected memory leaks",
                       "WARNING: ThreadSanitizer: data race (pid=7)",
                       "ring.cpp:5:3: runtime error: signed integer overflow",
                       "==7== Invalid read of size 4", "==7== 8 bytes in 1 blocks are definitely lost",
                       "[  FAILED  ] A.Test"):
            with self.subTest(report=report):
                status, lines = self.summarize(case("run"), skip("no such device", report))
                self.assertEqual(status, 1)
                self.assertEqual(lines[-1], "1 passed, 1 failed, 0 skipped")

    def test_a_report_of_a_process_that_nobody_asked_is_a_failure(self):
        for report in ("==7==ERROR: AddressSanitizer: heap-use-after-free on address 0x7",
                       "==7==ERROR: AddressSanitizer: stack-use-after-return on address 0x7",
                       "==7==ERROR: LeakSanitizer: detected memory leaks",
                       "WARNING: ThreadSanitizer: data race (pid=7)",
                       "ring.cpp:5:3: runtime error: signed integer overflow"):
            with self.subTest(report=report):
                status, lines = self.summarize(case("run", report), case("run"))
                self.assertEqual(status, 1)
                self.assertEqual(lines[-1], "1 passed, 1 failed, 0 skipped")

    def test_a_crash_on_purpose_is_none(self):
        for report in ("==7==ERROR: AddressSanitizer: SEGV on unknown address 0x0",
                       "==7==ERROR: AddressSanitizer: requested allocation size 0x7fff exceeds",
                       "SUMMARY: AddressSanitizer: SEGV in f"):
            with self.subTest(report=report):
                self.assertEqual(self.summarize(case("run", report))[0], 0)

    def test_what_skips_in_part_is_held_to_the_list(self):
        said = ("a (both): Skipped\nno {}\n[  SKIPPED ] a (both)\n[       OK ] a (server) (0.1 s)\n"
                "a (client): Skipped\nno such\n  device\n[  SKIPPED ] a (client)")
        for which, failed in (("such device", 0), ("right", 1)):
            with self.subTest(which=which):
                status, lines = self.summarize(case("run", said.format(which)),
                                               may_skip="*  all  no such .*\n")
                self.assertEqual(status, failed)
                self.assertEqual(lines[-1], f"0 passed, {failed} failed, {1 - failed} skipped")

    def test_what_passes_alone_is_named(self):
        for options, status, end in (([], 1, "0 passed, 1 failed, 0 skipped"),
                                     (["--tolerate-unsteady"], 0,
                                      "0 passed, 0 failed, 0 skipped, 1 unsteady")):
            with self.subTest(options=options):
                said, lines = self.summarize(case("fail", "boom"), again=[case("run")],
                                             options=options)
                self.assertEqual(said, status)
                self.assertIn("    boom", lines)
                self.assertEqual(lines[-2],
                                 "unsteady: release A.Test failed once, then passed three times alone")
                self.assertEqual(lines[-1], end)

    def test_what_fails_again_has_failed(self):
        for again in ([case("fail", "boom")], [case("run"), case("fail", "boom")], [skip("none")]):
            status, lines = self.summarize(case("fail", "boom"), again=again)
            self.assertEqual(status, 1)
            self.assertEqual(lines[-1], "0 passed, 1 failed, 0 skipped")

    def test_only_few_expectations_are_looked_at_again(self):
        def chosen(how, output="boom", count=1):
            xml = "<testsuite>" + case("fail", output) * count + case("run") + "</testsuite>"
            return run_again.candidates(
                xml, f"boom\nThe following tests FAILED:\n\t  1 - A.Test ({how})\nErrors while\n")

        self.assertEqual(chosen("Failed"), ["A.Test"])
        for how in ("SEGFAULT", "Timeout", "Subprocess aborted", "Not Run"):
            self.assertEqual(chosen(how), [])
        self.assertEqual(chosen("Failed", "WARNING: ThreadSanitizer: data race (pid=7)"), [])
        for said in ("the server ended by signal 11", "a client hangs", "terminate called after"):
            self.assertEqual(chosen("Failed", said), [])
        self.assertEqual(chosen("Failed", count=6), [])

    def test_a_run_without_tests_has_failed(self):
        self.assertEqual(self.summarize()[0], 1)
        with contextlib.redirect_stdout(io.StringIO()):
            self.assertEqual(test_summary.main(["release=/nonexistent.xml"]), 1)


if __name__ == "__main__":
    unittest.main()
