#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What scripts/bench_report.py writes of results that are known."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
SCRIPTS = HERE.parents[1] / "scripts"
sys.path.insert(0, str(SCRIPTS))
from bench_page import others, rows, sentences, tables  # noqa: E402

SAMPLE = json.loads((HERE / "compare_sample.json").read_text(encoding="utf-8"))


def page_of(files):
    """(exit code, the page) of a folder that has these files."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for path, text in files.items():
            (folder / path).parent.mkdir(exist_ok=True)
            (folder / path).write_text(text, encoding="utf-8")
        done = subprocess.run([sys.executable, "-B", SCRIPTS / "bench_report.py", folder],
                              capture_output=True, check=False)
        page = folder / "report.html"
        return done.returncode, page.read_text(encoding="utf-8") if page.exists() else ""


class Report(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.code, page = page_of({"compare.json": json.dumps(SAMPLE),
                                  "doors.txt": "doors <under> load\n"})
        cls.page = page.replace(rows.HARD_SPACE, " ")

    def test_tells_figures_with_their_spread_and_command(self):
        self.assertEqual(self.code, 0)
        self.assertIn('<td data-value="360">0.36 <small>0.34 to 0.39</small></td>', self.page)
        self.assertIn(">1.20 <small>1.06 to 1.34</small></td>", self.page)
        self.assertIn("<code>farcall compare --rows ring --sizes 64 --placement two-cpus --wait spin"
                      "</code>", self.page)

    def test_marks_messages_in_fragments(self):
        self.assertIn('<th scope="row">unix_dgram†</th>', self.page)

    def test_tells_what_failed_and_what_was_left_out(self):
        self.assertIn("tcp, 64 B, one-cpu: failed: connect: ECONNREFUSED", self.page)
        self.assertIn("zeromq: libzmq was not there at build time", self.page)
        self.assertIn("udp, free, 1 MiB: longer than a datagram", self.page)

    def test_shows_texts_as_they_are(self):
        self.assertIn("doors &lt;under&gt; load", self.page)

    def test_needs_nothing_else(self):
        for loads in ("<link rel=\"stylesheet", "<script src", "<img", "@import", "url("):
            self.assertNotIn(loads, self.page)
        self.assertIn("default-src 'none'", self.page)

    def test_refuses_results_without_rows(self):
        self.assertEqual(page_of({"compare.json": '{"machine": {}, "rows": []}'}), (1, ""))
        self.assertEqual(page_of({}), (1, ""))


class Sentences(unittest.TestCase):
    def test_are_those_of_the_figures(self):
        measured = [dict(row) for row in SAMPLE["rows"]]
        pipe = {"mechanism": "pipe", "wait": "block", "placement": "two-cpus", "message_bytes": 64,
                "rtt_ns": {"p50": 36000}, "throughput": {"bytes_per_s": 5e7}}
        measured.append(pipe)
        rows.name_rows(measured)
        said = [line.replace(rows.HARD_SPACE, " ") for line in sentences.results(measured)]
        self.assertEqual(said, [
            "Fastest here is ring, spin: a message of 64 B and its answer take 360 ns, with each side"
            " on a processor of its own; a bare cache line each way takes 300 ns.",
            "For the same, a pipe takes 36.0 µs, which is 100 times as long.",
            "Most bytes one way are moved by ring, spin: 1.92 GB/s in messages of 64 B, where a pipe"
            " moves 50.0 MB/s."])

    def test_are_left_out_where_nothing_was_measured(self):
        self.assertEqual(list(sentences.results([])), [])


class Commands(unittest.TestCase):
    def test_keep_how_it_was_measured_and_drop_what(self):
        results = {"machine": {"command": "build/release/farcall compare --rows ring,pipe --sizes=8,64"
                                          " --quick --rounds 2 --json 'a file.json'"}}
        row = {"mechanism": "pipe", "label": "pipe", "placement": "free", "message_bytes": 8}
        self.assertEqual(rows.command(results, row), "farcall compare --rows pipe --sizes 8"
                                                     " --placement free --quick --rounds 2")
        row = {"mechanism": "ring", "label": "ring, block", "wait": "block", "placement": "free",
               "message_bytes": 64, "readers": 4}
        self.assertEqual(rows.command({}, row), "farcall compare --workload broadcast --readers 4"
                                                " --rows ring --sizes 64 --wait block")


class Tables(unittest.TestCase):
    def test_leave_out_the_throughput_of_what_only_answers(self):
        def row(mechanism, one_way, rate):
            return {"mechanism": mechanism, "label": mechanism, "wait": "block", "placement": "free",
                    "message_bytes": 64, "rtt_ns": {"p50": 1000},
                    "throughput": {"messages_per_s": rate, "bytes_per_s": 64 * rate,
                                   "one_way": one_way}}
        page = "".join(tables.of_pairs({}, [row("door_call", False, 123e3), row("pipe", True, 456e3)]))
        self.assertIn('data-value="456000.0"', page)
        self.assertNotIn('data-value="123000.0"', page)


class Others(unittest.TestCase):
    def test_many_clients(self):
        row = {"mechanism": "call", "clients": 4, "servers": 1, "idle": 0, "calls_per_s": 1e6,
               "call_ns": {"p99": 2000}, "fairness": 0.9, "placement": "free", "wait": "block"}
        failed = {**row, "error": "no room", "call_ns": None}
        measured = others.scaling_rows({"rows": [row, {**row, "idle": 100}, failed]})
        self.assertEqual([(one["clients"], one["calls"], one["tail"], one["fair"])
                          for one in measured], [(4, 1e6, 2000, 0.9)])
        self.assertEqual([plot["id"] for plot in others.of_scaling(measured)],
                         ["scaling-calls", "scaling-tail", "scaling-fair"])
        self.assertEqual(others.of_scaling(others.scaling_rows({})), [])

    def test_the_study(self):
        runs = [{"run_name": "study/pipe/64/real_time", "run_type": kind, "real_time": time,
                 "time_unit": "us"} for kind, time in (("iteration", 1.0), ("iteration", 3.0),
                                                       ("aggregate", 9.0))]
        (plot,) = others.of_study(others.study_rows({"benchmarks": runs}))
        self.assertEqual(len(plot["traces"]), 1)
        self.assertAlmostEqual(plot["traces"][0]["y"][0], 2e-6)


if __name__ == "__main__":
    unittest.main()
