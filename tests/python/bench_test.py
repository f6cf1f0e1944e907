# SPDX-License-Identifier: Apache-2.0
"""That the measurements run and say what they have measured; the figures are for quiet machines."""

import json
import os
import pathlib
import subprocess
import sys

BENCH = pathlib.Path(os.environ["FARCALL_SOURCE"]) / "bench"


def run(script, *arguments):
    return subprocess.run([sys.executable, BENCH / script, *arguments], timeout=240, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_steps_come_to_all_workers_in_each_way(tmp_path):
    result, picture = tmp_path / "steps.json", tmp_path / "steps.png"
    done = run("python_steps.py", "--workers", "3", "--steps", "30", "--rounds", "2",
               "--json", result, "--plot", picture)
    assert done.returncode == 0, done.stderr
    measured = json.loads(result.read_text())
    assert (measured["workers"], measured["steps"], measured["rounds"]) == (3, 30, 2)
    names = [way["name"] for way in measured["ways"]]
    assert names[0] == "farcall.Broadcast"
    assert ("pyzmq PUB and SUB" in names) == ("pyzmq is not installed" not in done.stderr)
    assert len(set(names)) == len(names) >= 4
    for way in measured["ways"]:
        assert way["name"] in done.stdout
        assert 0 < way["p50_us"] <= way["p99_us"]
        assert len(way["processor_percent_rounds"]) == 2
        assert 0 < way["processor_percent"]
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_what_cannot_be_measured_is_refused():
    done = run("python_steps.py", "--workers", "0")
    assert done.returncode == 2
    assert "more than 0" in done.stderr


def test_each_comparison_has_rows_of_all():
    done = run("python_compare.py", "--quick", "--rounds", "1")
    assert done.returncode == 0, done.stderr
    for row in ("farcall.pipe", "farcall.open_door", "multiprocessing.managers", "farcall asend, arecv",
                "farcall acall", "farcall.Queue", "multiprocessing.Queue", "farcall.Broadcast"):
        assert any(line.strip().startswith(row) for line in done.stdout.splitlines()), row
