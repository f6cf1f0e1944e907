#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Whether scripts/lint.sh fails where it cannot know what to look at."""

import os
import pathlib
import subprocess
import unittest

TOP = pathlib.Path(__file__).resolve().parents[2]


class Lint(unittest.TestCase):
    def test_without_what_git_tells_nothing_is_right(self):
        for arguments in ([], ["--changed"]):
            done = subprocess.run(
                [TOP / "scripts/lint.sh", *arguments], stdin=subprocess.DEVNULL, timeout=120,
                env={**os.environ, "GIT_DIR": "/nonexistent", "LC_ALL": "C"}, capture_output=True, check=False)
            self.assertNotEqual(done.returncode, 0, arguments)
            self.assertIn(b"ot a git repository", done.stderr)


if __name__ == "__main__":
    unittest.main()
