#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Writes what `farcall compare --json` measured as a page of Markdown on standard output.

Usage: bench_report.py COMPARE.json [--plot FILE.png] [--study-summary FILE.md]
                       [--study-plot FILE.png]

Plots are embedded by the paths given, so give them as seen from where the page will stand.
"""

import argparse
import json
import math
import sys

REFERENCE_BYTES = 64  # the size at which rows are held against the controls
CONTROLS = ["cacheline_pingpong", "futex_pingpong"]
# On one processor a cache line goes nowhere; there the former measures time slices.
NO_CONTROL = {"one-cpu": ["cacheline_pingpong"]}
PLACEMENTS = {
    "one-cpu": "One processor: both sides pinned to the same one",
    "two-cpus": "Two processors: each side pinned to its own",
    "free": "Free: the scheduler decides",
}
NOTHING = "–"

HOW_TO_READ = f"""\
- A *round trip* is a message there and its answer of the same size back; its figure is the median
  of real samples. *Throughput* streams messages one way, up to the stated depth ahead of the
  reader; the clock stops at the last read. What only answers calls has no throughput of its own.
- *Placement* decides more than the mechanism does. Where both sides share a processor, an answer
  costs a switch; on two processors either a spinning reader sees the cache line at once, or an
  idle processor is woken, which on virtual machines is the dearest thing in these tables.
- *spin* never sleeps and burns a processor; *block* sleeps at once; *adaptive* spins as long as
  that has paid lately.
- The *controls* are the floor: `cacheline_pingpong` is two processors handing one cache line to
  and fro, which nothing can beat across processors; `futex_pingpong` is two processes that put
  each other to sleep and wake each other, which is what sleeping costs at least. Who hands the
  processor over without sleeping can be faster on one processor.
- Machines are noisy: believe ratios between rows of this one run, and only as far as their range
  goes, which holds the lowest median of the repetitions against the highest of the control's, and
  the reverse.
- † the message went in fragments, because the mechanism takes no message that long.
"""


def dig(row, *path):
    """A field of nested objects, or None where any of them is missing or null."""
    for name in path:
        row = row.get(name) if isinstance(row, dict) else None
    return row


def figure(value, scale=1.0):
    """Three digits, and none behind the point that mean nothing."""
    if value is None:
        return NOTHING
    value *= scale
    if value >= 100:
        return f"{value:,.0f}"
    if value >= 0.1:
        return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
    if value >= 0.001:
        return f"{value:.{1 - math.floor(math.log10(value))}f}"
    return "< 0.001" if value > 0 else "0"


def size_name(size):
    for unit, name in [(1 << 20, "MiB"), (1 << 10, "KiB")]:
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} B"


def name_rows(rows):
    """Gives every row a label: the mechanism, and what else tells it from its like."""
    ways = {}
    for row in rows:
        ways.setdefault(row["mechanism"], set()).add((row.get("engine"), row.get("wait")))
    for row in rows:
        kinds = ways[row["mechanism"]]
        label = row["mechanism"]
        if len({engine for engine, _ in kinds}) > 1 and row.get("engine"):
            label += f", {row['engine']}"
        if len({wait for _, wait in kinds}) > 1 and row.get("wait"):
            label += f", {row['wait']}"
        row["label"] = label


def table(header, lines):
    yield "| " + " | ".join(header) + " |"
    yield "| --- |" + " ---: |" * (len(header) - 1)
    for line in lines:
        yield "| " + " | ".join(line) + " |"
    yield ""


def by_size(title, rows, scale, *path):
    """Labels down, message sizes across; nothing at all if no cell says anything."""
    sizes = sorted({row["message_bytes"] for row in rows})
    labels = list(dict.fromkeys(row["label"] for row in rows))
    cells = {}
    for row in rows:
        text = figure(dig(row, *path), scale)
        if row.get("fragmented") and text != NOTHING:
            text += "†"
        cells[row["label"], row["message_bytes"]] = text
    lines = [[label] + [cells.get((label, size), NOTHING) for size in sizes] for label in labels]
    lines = [line for line in lines if any(text != NOTHING for text in line[1:])]
    if lines:
        yield title + ":\n"
        yield from table(["mechanism"] + [size_name(size) for size in sizes], lines)


def nearest_to_reference(rows):
    """Per label the row whose size is nearest to the reference, without those that failed."""
    chosen = {}
    for row in rows:
        if row.get("error"):
            continue
        best = chosen.get(row["label"])
        distance = abs(row["message_bytes"] - REFERENCE_BYTES)
        if best is None or distance < abs(best["message_bytes"] - REFERENCE_BYTES):
            chosen[row["label"]] = row
    return list(chosen.values())


def ratio(row, control):
    """Median against median, with the range that the repetitions of both leave open."""
    p50, base = dig(row, "rtt_ns", "p50"), dig(control, "rtt_ns", "p50")
    if not p50 or not base:
        return NOTHING
    low, high = dig(row, "spread", "p50_min"), dig(row, "spread", "p50_max")
    base_low, base_high = dig(control, "spread", "p50_min"), dig(control, "spread", "p50_max")
    text = f"{figure(p50 / base)} ×"
    if all([low, high, base_low, base_high]):
        text += f" ({figure(low / base_high)} to {figure(high / base_low)})"
    return text


def ratios(place, rows):
    chosen = nearest_to_reference(rows)
    controls = []
    for name in CONTROLS:
        if name not in NO_CONTROL.get(place, []):
            controls += [row for row in chosen if row["mechanism"] == name][:1]
    if not controls:
        return
    yield f"Round trip of {REFERENCE_BYTES} B held against the controls:\n"
    lines = []
    for row in chosen:
        other_control = row.get("engine") == "control" and row not in controls
        if other_control or dig(row, "rtt_ns", "p50") is None:
            continue
        label = row["label"]
        if row["message_bytes"] != REFERENCE_BYTES:
            label += f" at {size_name(row['message_bytes'])}"
        lines.append([label, figure(dig(row, "rtt_ns", "p50"), 1e-3)]
                     + [ratio(row, control) for control in controls])
    yield from table(["mechanism", "p50 in µs"]
                     + [f"to {control['mechanism']}" for control in controls], lines)


COSTS = [
    ("p90 µs", ("rtt_ns", "p90"), 1e-3),
    ("p99 µs", ("rtt_ns", "p99"), 1e-3),
    ("p99.9 µs", ("rtt_ns", "p999"), 1e-3),
    ("max µs", ("rtt_ns", "max"), 1e-3),
    ("wake-up from idle µs", ("wakeup_ns",), 1e-3),
    ("processor s per million", ("cpu_s_per_million",), 1.0),
    ("system calls per message", ("syscalls_per_message",), 1.0),
    ("switches per message", ("context_switches_per_message",), 1.0),
    ("set-up µs", ("setup_us",), 1.0),
]


def costs(rows):
    chosen = nearest_to_reference(rows)
    columns = [column for column in COSTS
               if any(dig(row, *column[1]) is not None for row in chosen)]
    lines = [[row["label"]] + [figure(dig(row, *path), scale) for _, path, scale in columns]
             for row in chosen]
    lines = [line for line in lines if any(text != NOTHING for text in line[1:])]
    if lines:
        yield f"What else a message of {REFERENCE_BYTES} B costs:\n"
        yield from table(["mechanism"] + [name for name, _, _ in columns], lines)


def placement(name, rows):
    yield f"## {PLACEMENTS.get(name, name)}\n"
    yield from by_size("Round trip, median in µs", rows, 1e-3, "rtt_ns", "p50")
    yield from ratios(name, rows)
    streams = [row for row in rows if dig(row, "throughput", "one_way") is not False]
    depths = sorted({row["depth"] for row in streams
                     if row.get("depth") and dig(row, "throughput", "messages_per_s")})
    ahead = " to ".join(map(str, dict.fromkeys([depths[0], depths[-1]]))) if depths else ""
    ahead = ahead and f", depth {ahead}"
    yield from by_size(f"Throughput in thousand messages a second{ahead}", streams, 1e-3,
                       "throughput", "messages_per_s")
    yield from by_size(f"Throughput in MB (10⁶ bytes) a second{ahead}", streams, 1e-6,
                       "throughput", "bytes_per_s")
    yield from costs(rows)


def failures(rows):
    failed = [row for row in rows if row.get("error")]
    if failed:
        yield "## What failed\n"
        for row in failed:
            yield (f"- {row['label']}, {size_name(row['message_bytes'])}, {row['placement']}: "
                   f"{row['error']}")
        yield ""


def left_out(results):
    absent = results.get("absent", [])
    skipped = results.get("skipped", [])
    if absent or skipped:
        yield "## What was left out\n"
        for entry in absent:
            yield f"- {entry['mechanism']}: {entry['reason']}"
        for entry in skipped:
            what = [entry.get("mechanism"), entry.get("placement")]
            if entry.get("message_bytes") is not None:
                what.append(size_name(entry["message_bytes"]))
            yield f"- {', '.join(part for part in what if part)}: {entry['reason']}"
        yield ""


def machine(facts):
    yield "| machine | |"
    yield "| --- | --- |"
    for name, value in facts.items():
        if isinstance(value, dict):
            value = [f"{key} {part}" for key, part in value.items() if part != "Not affected"]
        if isinstance(value, list):
            value = ", ".join(str(part) for part in value)
        yield f"| {name.replace('_', ' ')} | {value} |"
    yield ""


def report(results, arguments):
    rows = results["rows"]
    name_rows(rows)
    yield "# What each way between two processes costs here\n"
    if dig(results, "settings", "quick"):
        yield "**A quick run: few samples. Look, but do not quote.**\n"
    yield from machine(results.get("machine", {}))
    if arguments.plot:
        yield f"![Round trip against message size]({arguments.plot})\n"
    yield "## How to read it\n"
    yield HOW_TO_READ
    known = [name for name in PLACEMENTS if any(row["placement"] == name for row in rows)]
    others = dict.fromkeys(row["placement"] for row in rows if row["placement"] not in PLACEMENTS)
    for name in [*known, *others]:
        yield from placement(name, [row for row in rows if row["placement"] == name])
    yield from failures(rows)
    yield from left_out(results)
    if arguments.study_summary:
        yield "## The 2024 study\n"
        yield ("Time to make a channel and a child that writes 40,000 bytes, and to read them; "
               "docs/study-2024.md tells what that means.\n")
        if arguments.study_plot:
            yield f"![Mean time of an iteration against message size]({arguments.study_plot})\n"
        with open(arguments.study_summary, encoding="utf-8") as file:
            yield file.read()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("compare", help="JSON of farcall compare")
    parser.add_argument("--plot", metavar="FILE.png")
    parser.add_argument("--study-summary", metavar="FILE.md")
    parser.add_argument("--study-plot", metavar="FILE.png")
    arguments = parser.parse_args()
    with open(arguments.compare, encoding="utf-8") as file:
        results = json.load(file)
    if not results.get("rows"):
        sys.exit(f"{arguments.compare}: no rows were measured")
    for line in report(results, arguments):
        print(line)


if __name__ == "__main__":
    main()
