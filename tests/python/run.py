# SPDX-License-Identifier: Apache-2.0
"""Runs one file of tests with pytest. Usage: run.py FILE [MODULE]...

Where pytest or a module that the file needs is missing it says so in the words of GoogleTest, which
scripts/test_summary.py reads. Within a file no test may skip.
"""

import importlib.util
import sys


class NoSkips:
    skipped = False

    def pytest_runtest_logreport(self, report):
        self.skipped |= report.skipped


def main(file, *modules):
    for name in ("pytest", *modules):
        if importlib.util.find_spec(name) is None:
            print(f"{file}: Skipped\nthere is no {name} for Python\n\n[  SKIPPED ] {file}")
            return 0
    import pytest
    plugin = NoSkips()
    status = pytest.main(["-p", "no:cacheprovider", "-q", "--durations=5", file], plugins=[plugin])
    if plugin.skipped:
        print("a test has skipped, which none may")
    return int(status) or int(plugin.skipped)


if __name__ == "__main__":  # not in the processes that tests spawn
    sys.exit(main(*sys.argv[1:]))
