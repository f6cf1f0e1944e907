#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What scripts/check_sizes.py tells of: files of more than 500 lines, functions of more than 60."""

import pathlib
import subprocess
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts/check_sizes.py"


def of_lines(begin, lines, end="}"):
    """So many lines, from `begin` to `end`."""
    return "\n".join([begin, *["  work();"] * (lines - 2), end, ""])


class Sizes(unittest.TestCase):
    def told_of(self, name, text):
        with tempfile.TemporaryDirectory() as top:
            file = pathlib.Path(top, name)
            file.parent.mkdir(parents=True)
            file.write_text(text)
            done = subprocess.run([SCRIPT], cwd=top, stdin=subprocess.DEVNULL, timeout=60,
                                  capture_output=True, text=True, check=False)
        self.assertEqual(done.stderr, "")
        self.assertEqual(done.returncode, 1 if done.stdout else 0)
        return done.stdout

    def test_a_file_may_have_500_lines(self):
        self.assertEqual(self.told_of("src/a/b.cpp", "\n" * 500), "")
        self.assertEqual(self.told_of("src/a/b.cpp", "\n" * 501), "src/a/b.cpp: 501 lines, more than 500\n")

    def test_so_may_one_of_tests(self):
        for name in ("tests/a/b_test.cpp", "tests/a/b.hpp", "tests/a/b.c", "tests/a/b_test.py"):
            self.assertEqual(self.told_of(name, "\n" * 500), "")
            self.assertEqual(self.told_of(name, "\n" * 501), f"{name}: 501 lines, more than 500\n")
        self.assertEqual(self.told_of("tests/a/b_test.cpp", of_lines("TEST(A, B) {", 60)), "")
        self.assertIn("TEST() has 61", self.told_of("tests/a/b_test.cpp", of_lines("TEST(A, B) {", 61)))

    def test_a_function_may_have_60_lines(self):
        around = (("", ""), ("namespace a {\n", "}\n"), ('extern "C" {\n', "}\n"),
                  ("namespace {\nstruct alignas(f(64)) A final : B<C> {\n  int a{1};\n", "};\n}\n"))
        for before, after in around:
            text = before + of_lines("int one(int a) noexcept {", 60) + after
            self.assertEqual(self.told_of("src/a/b.hpp", text), "")
            text = before + of_lines("int one(int a) noexcept {", 61) + after
            line = before.count("\n") + 1
            self.assertEqual(self.told_of("src/a/b.hpp", text),
                             f"src/a/b.hpp:{line}: one() has 61 lines, more than 60\n")

    def test_its_head_counts(self):
        text = of_lines("long two(int a,\n         int b)\n{", 59)
        self.assertEqual(self.told_of("kernel/doors/b.c", text),
                         "kernel/doors/b.c:1: two() has 61 lines, more than 60\n")

    def test_braces_that_are_none_do_not_count(self):
        text = ('char a = \'{\';  // {\nconst char* b = "{\\"";\nauto c = R"({")";\n'
                'int d = 1\'000; /* { */\n#define E {\n')
        self.assertEqual(self.told_of("src/a/b.cpp", text + of_lines("int one() {", 60)), "")
        self.assertIn("one() has 61", self.told_of("src/a/b.cpp", text + of_lines("int one() {", 61)))

    def test_tables_have_no_bound_of_their_own(self):
        text = "constexpr Row kRows[] = {\n" + "    {1, f()},\n" * 100 + "};\n"
        self.assertEqual(self.told_of("src/a/b.cpp", text), "")


if __name__ == "__main__":
    unittest.main()
