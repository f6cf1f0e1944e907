#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What kernel/tests/doors_test and tap_to_junit.py make of programs that do not run as they should."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

TOP = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "scripts"))
import test_summary  # noqa: E402

# A program of GoogleTest's: two tests, one of which skips.
GOOD = r"""case $* in
*--gtest_list_tests*) printf 'Doors.\n  Opens\n  Closes\n' ;;
*Doors.Closes*) printf 'a.cpp:1: Skipped\nno door\n\n[  SKIPPED ] Doors.Closes (0 ms)\n' ;;
esac
"""
MISSING = "echo 'error while loading shared libraries' >&2; exit 127\n"
NONE = "exit 0\n"
# Ends the worker that has started it, which is a shell's process in the background.
ENDS_ITS_WORKER = GOOD.replace("*Doors.Closes*)", "*Doors.Closes*) kill -9 $PPID; exit;;\n*x*)")


class Guest(unittest.TestCase):
    def outcomes(self, kernel_tests, process_tests):
        """Returns {name of a test: outcome} for a guest whose two programs are these."""
        with tempfile.TemporaryDirectory() as folder:
            guest = pathlib.Path(folder)
            (guest / "programs").mkdir()
            for name, text in (("door-kernel-tests", kernel_tests), ("door-process-tests", process_tests),
                               ("foreign-program", "echo HELLO\n"),
                               ("foreign-owner", "echo 'called, owned'\n"),
                               ("foreign-server", "echo 'threads: made'\n"),
                               ("foreign-client", "printf 'attributes: unref\\n12: 144\\n6: 36\\n0: 0'\n")):
                (guest / "programs" / name).write_text("#!/bin/sh\n" + text)
                (guest / "programs" / name).chmod(0o755)
            (guest / "programs" / "examples").write_text("")
            (guest / "programs" / "doors_list").write_text("# none\n")
            script = (TOP / "kernel/tests/doors_test").read_text()
            for place in ("/tmp/", "/programs/"):
                script = script.replace(place, f"@{place}")
            script = script.replace("@/tmp/", f"{guest}/").replace("@/programs/", f"{guest}/programs/")
            script = script.replace("chmod 666 /dev/door", ":").replace("ulimit -n 16384", ":")
            (guest / "doors_test").write_text(script)
            said = subprocess.run(["sh", str(guest / "doors_test")], capture_output=True, text=True,
                                  timeout=60, check=False).stdout
            (guest / "tap").write_text(said)
            xml = subprocess.run([sys.executable, str(TOP / "scripts/tap_to_junit.py"), f"doors={guest}/tap"],
                                 capture_output=True, text=True, check=True).stdout
            (guest / "tests.xml").write_text(xml)
            return {name: result for name, _, result, _ in test_summary.read_cases(guest / "tests.xml")}

    def test_all_that_is_well_passes_or_skips(self):
        outcomes = self.outcomes(GOOD, GOOD)
        self.assertEqual(outcomes["doors: Doors.Opens"], "passed")
        self.assertEqual(outcomes["doors: Doors.Closes"], "skipped")
        self.assertNotIn("failed", outcomes.values())

    def test_a_program_that_cannot_tell_its_tests_has_failed(self):
        outcomes = self.outcomes(MISSING, GOOD)
        self.assertEqual(outcomes["doors: door-kernel-tests tells its tests (status 127)"], "failed")
        self.assertEqual(outcomes["doors: Doors.Opens"], "passed")

    def test_no_tests_are_a_failure(self):
        self.assertEqual(self.outcomes(NONE, NONE)["doors: there are tests"], "failed")

    def test_tests_that_a_worker_has_not_come_to_are_a_failure(self):
        self.assertEqual(self.outcomes(ENDS_ITS_WORKER, GOOD)["doors: every test ran"], "failed")


if __name__ == "__main__":
    unittest.main()
