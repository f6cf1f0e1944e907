#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Whether scripts/claims.py can measure every line of the tables that it names."""

import contextlib
import io
import json
import pathlib
import shutil
import sys
import tempfile
import unittest
from unittest import mock

TOP = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TOP / "scripts"))
import claims  # noqa: E402


class Claims(unittest.TestCase):
    def test_every_line_has_a_measurement(self):
        for document, header, measured in claims.TABLES:
            known, _ = measured(1)
            lines = [label for _, (label, *_) in claims.Table(document, header).rows()]
            self.assertEqual(sorted(lines), sorted(known), document)

    def test_a_figure_is_a_median_with_its_range(self):
        self.assertEqual(claims.spread([3000, 1000, 2000], claims.microseconds),
                         ("2 us", "1 us to 3 us", "1 to 3 us"))
        self.assertEqual(claims.spread([None], claims.microseconds), ("-", "", "-"))

    def test_a_document_says_the_range_where_it_is_wide(self):
        def said(values, show):
            return claims.spread(values, show)[2]

        self.assertEqual(said([1000, 1100, 1200], claims.microseconds), "1.1 us")
        self.assertEqual(said([1000, 1100, 1221], claims.microseconds), "1 to 1.22 us")
        self.assertEqual(said([90000, 150000], claims.per_second), "90,000 to 0.15 M")

    def test_a_figure_is_short(self):
        self.assertEqual(claims.per_second(181000), "0.181 M")
        self.assertEqual(claims.per_second(14400), "14,400")

    def test_figures_of_a_report_are_put_into_a_copy(self):
        with tempfile.TemporaryDirectory() as name, mock.patch.object(claims, "TOP",
                                                                      pathlib.Path(name)):
            copy = pathlib.Path(name, "README.md")
            shutil.copy(TOP / "README.md", copy)
            before = copy.read_text(encoding="utf-8").splitlines()
            report = pathlib.Path(name, "compare.json")
            report.write_text(json.dumps({"rows": [
                {"mechanism": "pipe", "wait": "block", "placement": place, "message_bytes": 64,
                 "rtt_ns": {"p50": p50}, "throughput": {"messages_per_s": 5e5}}
                for place, p50 in (("two-cpus", 123400), ("one-cpu", 4560))]}), encoding="utf-8")
            words = ["claims.py", "--from", str(report), "--write", "--only", "64 B there"]
            with mock.patch.object(sys, "argv", words), contextlib.redirect_stdout(io.StringIO()):
                claims.main()
            after = copy.read_text(encoding="utf-8").splitlines()
            changed = [(old, new) for old, new in zip(before, after) if old != new]
            self.assertEqual(len(before), len(after))
            self.assertEqual(len(changed), 1, changed)
            old, new = (line.split(" | ") for line in changed[0])
            # What the report does not have stays as it was.
            self.assertEqual(new, ["| pipe", "123 us", "4.56 us", old[3], "0.5 M", old[5]])


if __name__ == "__main__":
    unittest.main()
