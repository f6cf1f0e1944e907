#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The page of scripts/bench_report.py as a browser shows it. Usage: bench_page_test.py FARCALL"""

import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

import browser

SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"
FARCALL = sys.argv[1]
# No control that spins on one processor: on a busy machine that takes a minute.
TINY = ["--rounds", "2", "--budget", "2"]
MEASUREMENTS = {
    "compare.json": ["--rows", "ring,pipe,futex_pingpong", "--sizes", "64,1K", "--wait",
                     "adaptive", "--placement", "two-cpus,one-cpu", *TINY],
    "broadcast.json": ["--workload", "broadcast", "--rows", "ring,pipe", "--readers", "1,2", *TINY],
    "scaling.json": ["--workload", "scaling", "--rows", "pipe", "--clients", "1,3", "--pairs", "2",
                     *TINY],
}
VISIBLE = "[...document.querySelectorAll('#pairs tbody tr:not([hidden])')]"


def skip(reason):
    """As GoogleTest would say it."""
    print(f"the page: Skipped\n{reason}\n\n[  SKIPPED ] the page")
    sys.exit(0)


def measure(folder):
    for name, options in MEASUREMENTS.items():
        subprocess.run([FARCALL, "compare", *options, "--json", folder / name],
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True, timeout=150)
    subprocess.run([sys.executable, "-B", SCRIPTS / "bench_report.py", folder], check=True)


class Page(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        folder = pathlib.Path(cls.folder.name)
        measure(folder)
        cls.results = json.loads((folder / "compare.json").read_text(encoding="utf-8"))
        cls.address = (folder / "report.html").as_uri()
        cls.browser = browser.Browser(browser.find())
        cls.addClassCleanup(cls.browser.close)
        cls.browser.look_as(1280)
        cls.browser.tell("Page.navigate", url=cls.address)
        cls.browser.wait_for("document.documentElement?.dataset.ready === 'yes'")

    def lines_of(self, plot):
        """The points of each line that is drawn in a plot."""
        return self.browser.value(
            f"[...document.querySelectorAll('#{plot} .scatterlayer .trace')]"
            ".map((trace) => trace.querySelectorAll('.point').length)")

    def choose(self, chooser, value):
        self.browser.value(
            f"(() => {{ const box = document.querySelector('form[data-table=pairs]"
            f" [data-filter={chooser}]'); box.value = '{value}';"
            " box.dispatchEvent(new Event('input', {bubbles: true})); })()")

    def test_plots_have_a_line_for_each_row(self):
        # The limit, of two points, is a line without marks.
        for place in ("two-cpus", "one-cpu"):
            self.assertEqual(sorted(self.lines_of(f"trip-{place}")), [0, 2, 2])
        self.assertEqual(self.lines_of("stream-two-cpus"), [2, 2])
        ways = len({row["mechanism"] + row["wait"] for row in json.loads(pathlib.Path(
            self.folder.name, "broadcast.json").read_text(encoding="utf-8"))["rows"]})
        self.assertEqual(self.lines_of("round"), [2] * ways)
        self.assertEqual(self.lines_of("scaling-calls"), [2])

    def test_figures_are_those_of_the_json(self):
        self.choose("place", "")
        self.choose("size", "")
        shown = self.browser.value(
            f"{VISIBLE}.map((row) => [row.dataset.name, row.dataset.place, row.dataset.size,"
            " Number(row.cells[3].dataset.value)])")
        wanted = [[row["mechanism"], row["placement"],
                   "" if row["mechanism"] == "futex_pingpong" else str(row["message_bytes"]),
                   row["rtt_ns"]["p50"]] for row in self.results["rows"]]
        self.assertEqual(sorted(shown), sorted(wanted))
        for row in self.results["rows"]:
            if row["mechanism"] == "pipe" and row["placement"] == "one-cpu":
                drawn = self.browser.value(
                    "document.getElementById('trip-one-cpu').data.find((line) => line.name === 'pipe')")
                at = drawn["x"].index(row["message_bytes"])
                self.assertAlmostEqual(drawn["y"][at] * 1e9, row["rtt_ns"]["p50"], places=3)

    def test_a_click_sorts_and_another_one_sorts_back(self):
        self.choose("place", "")
        self.choose("size", "")
        for order, backwards in (("ascending", False), ("descending", True)):
            self.browser.value("document.querySelectorAll('#pairs thead button')[3].click()")
            heads = self.browser.value("[...document.querySelectorAll('#pairs th[aria-sort]')]"
                                       ".map((head) => head.getAttribute('aria-sort'))")
            self.assertEqual(heads[3], order)
            self.assertEqual(set(heads[:3] + heads[4:]), {"none"})
            values = self.browser.value(f"{VISIBLE}.map((row) => Number(row.cells[3].dataset.value))")
            self.assertEqual(values, sorted(values, reverse=backwards))

    def test_choosers_choose(self):
        self.choose("place", "one-cpu")
        self.choose("size", "1024")
        self.assertEqual(
            sorted(self.browser.value(f"{VISIBLE}.map((row) => row.dataset.name)")),
            ["futex_pingpong", "pipe", "ring"])

    def test_a_box_hides_a_line_in_all_plots(self):
        click = "document.querySelector('input[data-group=pairs][data-line=ring]').click()"
        self.browser.value(click)
        self.browser.wait_for("document.querySelectorAll('#trip-one-cpu .trace').length === 2")
        self.browser.wait_for("document.querySelectorAll('#stream-two-cpus .trace').length === 1")
        self.browser.value(click)
        self.browser.wait_for("document.querySelectorAll('#trip-one-cpu .trace').length === 3")

    def test_a_small_window_has_no_scroll_bar_across(self):
        self.browser.look_as(375, "dark")
        self.addCleanup(self.browser.look_as, 1280)
        self.browser.wait_for("document.documentElement.scrollWidth <= 375")
        self.assertEqual(self.browser.value("getComputedStyle(document.body).backgroundColor"),
                         "rgb(22, 24, 28)")

    def test_zz_nothing_was_asked_for_and_nothing_went_wrong(self):
        self.assertEqual(self.browser.errors(), [])
        asked = [address for address in self.browser.requests()
                 if not address.startswith(("data:", "blob:"))]
        self.assertEqual(asked, [self.address])


if __name__ == "__main__":
    if browser.find() is None:
        skip("there is no chromium")
    if importlib.util.find_spec("plotly") is None:
        skip("there is no python3-plotly")
    unittest.main(argv=sys.argv[:1])
