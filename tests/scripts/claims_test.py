#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Whether scripts/claims.py can measure every line of the tables that it names."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))
import claims  # noqa: E402


class Claims(unittest.TestCase):
    def test_every_line_has_a_measurement(self):
        for document, header, measured in claims.TABLES:
            known, _ = measured(1)
            lines = [label for _, (label, *_) in claims.Table(document, header).rows()]
            self.assertEqual(sorted(lines), sorted(known), document)

    def test_a_figure_is_a_median_with_its_range(self):
        self.assertEqual(claims.spread([3000, 1000, 2000], claims.microseconds),
                         ("2 us", "1 us to 3 us"))
        self.assertEqual(claims.spread([None], claims.microseconds), ("-", ""))
        self.assertEqual(claims.per_second(181000), "0.181 M")
        self.assertEqual(claims.per_second(14400), "14,400")


if __name__ == "__main__":
    unittest.main()
