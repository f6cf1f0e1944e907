#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Draws what `farcall compare --json` wrote: round trips and throughput against message size.

Usage: plot_compare.py REPORT.json PICTURE.png

One column per placement: above the median round trip, below the bytes that stream one way. One
line per mechanism; rings and other ways to wait in shared memory have one per way of waiting. Thin
bars span the medians of the single rounds: how much the machine was disturbed.
Limits that have no message size are horizontal lines.

Of `--workload broadcast`: on the left the median round, on the right what the slowest reader
receives of a stream, against the number of readers, for the smallest message.

Of `--workload scaling`: calls per second of all, the 99th percentile and fairness against the
number of clients; above those of one server, below those with a server each.
"""

import json
import os
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402: after the choice of a back end
from matplotlib.ticker import FuncFormatter  # noqa: E402

PLACEMENTS = {
    "two-cpus": "two processors",
    "one-cpu": "one processor",
    "free": "wherever the scheduler places them",
}
DASHES = {"spin": "-", "adaptive": "--", "block": ":"}
MARKERS = "osv^D<>pXPhd*"
NO_SIZE = ("null_call", "cacheline_pingpong", "cacheline_shared", "futex_pingpong")


def with_unit(value, units):
    for factor, unit in reversed(units):
        if value >= factor * 0.9999:
            return f"{value / factor:g} {unit}"
    return f"{value:g}"


def bytes_label(value, _=None):
    return with_unit(value, [(1, "B"), (1 << 10, "KiB"), (1 << 20, "MiB"), (1 << 30, "GiB")])


def time_label(value, _=None):
    return with_unit(value, [(1e-3, "ps"), (1, "ns"), (1e3, "us"), (1e6, "ms"), (1e9, "s")])


def rate_label(value, _=None):
    return with_unit(value, [(1, "B/s"), (1e3, "kB/s"), (1e6, "MB/s"), (1e9, "GB/s")])


def count_label(value, _=None):
    return with_unit(value, [(1, ""), (1e3, "k"), (1e6, "M")])


def place(size):
    """Where a size stands on the axis, which has no 0: an empty message is left of one byte."""
    return size or 0.5


def median_round_trip(row):
    return row["rtt_ns"]["p50"]


def stream_rate(row):
    throughput = row.get("throughput") or {}
    if throughput.get("one_way") or row["mechanism"] == "memcpy":
        return throughput.get("bytes_per_s")
    return None  # calls, one after another, are no stream


class Lines:
    """Gives each mechanism one look that is the same in all panels."""

    def __init__(self, rows):
        several = {}
        for row in rows:
            several.setdefault(row["mechanism"], set()).add(row["wait"])
        self.several = {name for name, waits in several.items() if len(waits) > 1}
        colours = list(plt.get_cmap("tab20").colors[::2]) + list(plt.get_cmap("tab20").colors[1::2])
        ordinary = [name for name in several if name != "ring" and name not in self.controls(rows)]
        self.looks = {}
        for index, name in enumerate(ordinary):
            self.looks[name] = {
                "color": colours[index % len(colours)],
                "marker": MARKERS[index % len(MARKERS)],
                "linewidth": 1.3,
                "markersize": 4,
            }
        self.looks["ring"] = {"color": "black", "marker": "o", "linewidth": 2.4, "markersize": 4}

    @staticmethod
    def controls(rows):
        return {row["mechanism"] for row in rows if row["engine"] == "control"}

    def look(self, row):
        if row["engine"] == "control":
            return {"color": "0.55", "linewidth": 1.3, "linestyle": "-."}
        style = DASHES[row["wait"]] if row["mechanism"] in self.several else "-"
        return self.looks[row["mechanism"]] | {"linestyle": style}

    def label(self, row):
        name = row["mechanism"]
        return f"{name}, {row['wait']}" if name in self.several else name


def curves(rows):
    """Rows of one placement by mechanism and way of waiting, each by size."""
    found = {}
    for row in rows:
        found.setdefault((row["mechanism"], row["wait"]), []).append(row)
    return [sorted(curve, key=lambda row: row["message_bytes"]) for curve in found.values()]


# The controls that are drawn as horizontal lines, and where they are one.
CONTROLS = {
    "cacheline_pingpong": ("two-cpus", "free"),
    "futex_pingpong": ("two-cpus", "one-cpu", "free"),
}


def draw_controls(axes, rows):
    for row in rows:
        if row["placement"] not in CONTROLS.get(row["mechanism"], ()):
            continue
        control = median_round_trip(row)
        axes.axhline(control, color="0.55", linewidth=1.2, linestyle="-.")
        axes.annotate(
            row["mechanism"], (1, control), xycoords=("axes fraction", "data"),
            xytext=(-4, -3), textcoords="offset points", ha="right", va="top", fontsize=7,
            color="0.4",
        )


def draw_round_trips(axes, rows, lines):
    """Returns the lines by label."""
    drawn = {}
    for curve in curves(row for row in rows if row["engine"] != "control"):
        sizes = [place(row["message_bytes"]) for row in curve]
        look = lines.look(curve[0])
        (line,) = axes.plot(sizes, [median_round_trip(row) for row in curve], **look)
        drawn[lines.label(curve[0])] = line
    draw_controls(axes, rows)
    return drawn


def draw_spread(axes, rows, lines):
    for row in rows:
        if row["engine"] != "control":
            spread = row["spread"]
            axes.vlines(
                place(row["message_bytes"]), spread["p50_min"], spread["p50_max"],
                color=lines.look(row)["color"], linewidth=1, alpha=0.3,
            )


def draw_streams(axes, rows, lines):
    drawn = {}
    for curve in curves(
        row for row in rows if row["engine"] != "control" or row["mechanism"] == "memcpy"
    ):
        points = [(place(row["message_bytes"]), stream_rate(row)) for row in curve if stream_rate(row)]
        if points:
            (line,) = axes.plot(*zip(*points), **lines.look(curve[0]))
            drawn[lines.label(curve[0])] = line
    return drawn


def plot(report, picture):
    rows = [row for row in report["rows"] if row.get("rtt_ns") and not row.get("error")]
    if not rows:
        raise SystemExit("plot_compare.py: the report has no rows to draw")
    placements = [name for name in PLACEMENTS if any(row["placement"] == name for row in rows)]
    lines = Lines(rows)
    sizes = sorted({row["message_bytes"] for row in rows if row["mechanism"] not in NO_SIZE})

    width = 5.2 * len(placements) + 2.2
    figure, grid = plt.subplots(
        2, len(placements), figsize=(max(width, 8), 9), sharex=True, sharey="row", squeeze=False
    )
    legend = {}
    for column, placement in enumerate(placements):
        here = [row for row in rows if row["placement"] == placement]
        above, below = grid[0][column], grid[1][column]
        for axes in (above, below):
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
        trips = draw_round_trips(above, here, lines)
        legend = draw_streams(below, here, lines) | trips | legend
        above.set_title(PLACEMENTS[placement])
        below.set_xlabel("message size")
        for axes, label in ((above, time_label), (below, rate_label)):
            axes.yaxis.set_major_formatter(FuncFormatter(label))
            axes.grid(True, which="major", linewidth=0.5, color="0.85")
            axes.tick_params(labelleft=True)
        if sizes:
            below.set_xticks(
                [place(size) for size in sizes], [bytes_label(size) for size in sizes], rotation=30
            )
            below.xaxis.set_minor_locator(matplotlib.ticker.NullLocator())
    limits = grid[0][0].get_ylim()
    for column, placement in enumerate(placements):
        draw_spread(
            grid[0][column], [row for row in rows if row["placement"] == placement], lines
        )
    grid[0][0].set_ylim(limits)  # one bad round must not squeeze all the others
    grid[0][0].set_ylabel("round trip, median")
    grid[1][0].set_ylabel("one way, bytes per second")

    machine = report["machine"]
    figure.suptitle(
        f"farcall compare: {machine['cpu']}, Linux {machine['kernel']}", fontsize=10, color="0.3"
    )
    # Slow ones on top, as in the panels; a copy in memory, which has no round trip, at the end.
    slowest_first = sorted(
        legend, key=lambda label: (label == "memcpy", -float(legend[label].get_ydata()[0]))
    )
    box = figure.legend(
        [legend[label] for label in slowest_first], slowest_first, loc="center right", fontsize=8,
        frameon=False, handlelength=3,
    )
    figure.canvas.draw()
    inches = box.get_window_extent().width / figure.dpi + 0.1
    figure.tight_layout(rect=(0, 0, 1 - inches / figure.get_figwidth(), 0.98))
    save(figure, picture)


def plot_broadcast(report, picture):
    rows = [row for row in report["rows"] if "error" not in row]
    size = min((row["message_bytes"] for row in rows), default=0)
    rows = [row for row in rows if row["message_bytes"] == size]
    lines = Lines(rows)
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 5))
    for those in curves(rows):
        those.sort(key=lambda row: row["readers"])
        counts = [row["readers"] for row in those]
        look = lines.look(those[0]) | {"label": lines.label(those[0])}
        left.plot(counts, [row["round_ns"]["p50"] for row in those], **look)
        right.plot(counts, [row["stream"]["messages_per_s"] for row in those], **look)
    readers = sorted({row["readers"] for row in rows})
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(readers, [str(count) for count in readers])
        axes.set_xlabel("readers")
        axes.grid(True, which="major", linewidth=0.5, color="0.85")
    left.set_ylabel("all told and heard from, median")
    left.yaxis.set_major_formatter(FuncFormatter(time_label))
    right.set_ylabel("messages per second, slowest reader")
    right.yaxis.set_major_formatter(FuncFormatter(count_label))
    right.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=8, frameon=False)
    machine = report["machine"]
    figure.suptitle(
        f"farcall compare, one writer to many readers, {bytes_label(size)}: {machine['cpu']}, "
        f"Linux {machine['kernel']}", fontsize=10, color="0.3"
    )
    figure.tight_layout(rect=(0, 0, 1, 0.98))
    save(figure, picture)


SCALING = (
    ("calls per second, all together", "log", count_label, lambda row: row["calls_per_s"]),
    ("call, 99th percentile", "log", time_label, lambda row: row["call_ns"]["p99"]),
    ("slowest client's calls / fastest's", "linear", None, lambda row: row["fairness"]),
)


def draw_scaling(panels, rows, lines, word):
    """One line of panels: clients of one server, or pairs. Returns the lines by label."""
    drawn = {}
    counts = sorted({row["clients"] for row in rows})
    for axes, (label, scale, ticks, value) in zip(panels, SCALING):
        for those in curves(rows):
            those.sort(key=lambda row: row["clients"])
            (line,) = axes.plot(
                [row["clients"] for row in those], [value(row) for row in those],
                **lines.look(those[0]),
            )
            drawn[lines.label(those[0])] = line
        axes.set_xscale("log", base=2)
        axes.set_yscale(scale)
        axes.set_xticks(counts, [str(count) for count in counts])
        axes.xaxis.set_minor_locator(matplotlib.ticker.NullLocator())
        axes.set_xlabel(word)
        axes.set_ylabel(label)
        axes.grid(True, which="major", linewidth=0.5, color="0.85")
        if ticks:
            axes.yaxis.set_major_formatter(FuncFormatter(ticks))
        else:
            axes.set_ylim(0, 1.05)
    return drawn


def plot_scaling(report, picture):
    rows = [row for row in report["rows"] if "error" not in row]
    size = min((row["message_bytes"] for row in rows), default=0)
    rows = [row for row in rows if row["message_bytes"] == size]
    if not rows:
        raise SystemExit("plot_compare.py: the report has no rows to draw")
    lines = Lines(rows)
    # One client of one server is the first of both.
    kinds = [
        ("clients of one server", [row for row in rows if row["servers"] == 1]),
        ("pairs", [row for row in rows if row["servers"] == row["clients"]]),
    ]
    kinds = [kind for kind in kinds if any(row["clients"] > 1 for row in kind[1])] or kinds[:1]
    figure, grid = plt.subplots(len(kinds), 3, figsize=(15, 4.6 * len(kinds)), squeeze=False)
    legend = {}
    for panels, (word, those) in zip(grid, kinds):
        legend |= draw_scaling(panels, those, lines, word)
    machine = report["machine"]
    figure.suptitle(
        f"farcall compare, many clients, {bytes_label(size)}: {machine['cpu']}, "
        f"{machine['processors']} processors, Linux {machine['kernel']}", fontsize=10, color="0.3"
    )
    box = figure.legend(
        list(legend.values()), list(legend), loc="center right", fontsize=8, frameon=False,
        handlelength=3,
    )
    figure.canvas.draw()
    inches = box.get_window_extent().width / figure.dpi + 0.1
    figure.tight_layout(rect=(0, 0, 1 - inches / figure.get_figwidth(), 0.98))
    save(figure, picture)


PLOTS = {"pair": plot, "broadcast": plot_broadcast, "scaling": plot_scaling}


def save(figure, picture):
    # Written beside and renamed: a picture is whole or not there. Devices cannot be renamed.
    if os.path.exists(picture) and not os.path.isfile(picture):
        figure.savefig(picture, dpi=110, format="png")
        return
    partial = f"{picture}.part"
    figure.savefig(partial, dpi=110, format="png")
    os.replace(partial, picture)


def main(arguments):
    if len(arguments) != 2:
        raise SystemExit(__doc__.split("\n\n")[1])
    with open(arguments[0], encoding="utf-8") as file:
        report = json.load(file)
    PLOTS[report["settings"].get("workload", "pair")](report, arguments[1])


if __name__ == "__main__":
    main(sys.argv[1:])
