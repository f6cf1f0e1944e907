#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Every reason for which a test may skip stands in tests/may_skip.txt, before a machine has it."""

import pathlib
import re
import sys
import unittest

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS.parent / "scripts"))
import test_summary  # noqa: E402

LITERAL = r'"((?:[^"\\]|\\.)*)"'
SKIP = re.compile(rf"GTEST_SKIP\(\)\s*<<\s*((?:{LITERAL}\s*)+)(<<)?")


def reasons(text):
    """Each reason that begins with words, and whether more follows that only the machine knows."""
    for skip in SKIP.finditer(text):
        yield "".join(re.findall(LITERAL, skip[1])), bool(skip[3])


class MaySkip(unittest.TestCase):
    def test_the_reasons_of_a_source_are_found(self):
        self.assertEqual(list(reasons('if (x) GTEST_SKIP() << "no such"\n " thing"; GTEST_SKIP()<<"a "<<b;')),
                         [("no such thing", False), ("a ", True)])

    def test_each_stands_on_the_list(self):
        listed = [reason for _, _, reason in test_summary.read_list(TESTS / "may_skip.txt")]
        found = 0
        for source in sorted([*TESTS.rglob("*.cpp"), *TESTS.rglob("*.hpp")]):
            for reason, more in reasons(source.read_text(encoding="utf-8")):
                found += 1
                whole = reason + "?" * more
                with self.subTest(source=source.relative_to(TESTS), reason=whole):
                    self.assertTrue(any(each.fullmatch(whole) for each in listed),
                                    "neither permitted nor forbidden in tests/may_skip.txt")
        self.assertGreater(found, 100)


if __name__ == "__main__":
    unittest.main()
