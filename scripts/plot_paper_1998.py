#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Draws and sums up what scripts/paper_1998.sh measured.

Usage: plot_paper_1998.py RESULTS.json [--plot FILE.png] [--summary FILE.md]

The plot: median round trip against message size, one panel per placement, one line per
mechanism, thin bars from the least to the greatest median of the rounds, and hollow marks where
Solaris 2.6 was with one byte. The summary, on standard output if no file is named: the same as
tables of Markdown, and one byte held against what was published then.
"""

import json
import sys

import plot_or_tell

DOORS = ["door_call", "call"]  # whichever was measured
PLACEMENTS = {
    "one-cpu": "one processor",
    "two-cpus": "two processors",
    "free": "placed by the scheduler",
}
# Mechanism, name, in the plot?
MECHANISMS = {
    "doors": ("doors", True),
    "pipe": ("pipe", True),
    "unix_stream": ("Unix stream socket", True),
    "onc_rpc": ("ONC RPC", True),
    "sysv_mq": ("System V queue", False),
    "posix_mq": ("POSIX queue", False),
}
# Microseconds there and back with one byte.
SUN_1996 = {"doors": 66, "pipe": 175, "sysv_mq": 270, "onc_rpc": 1020}
SOLARIS_26 = {"doors": 121, "sysv_mq": 260, "pipe": 324, "unix_stream": 465, "posix_mq": 584}
NOTHING = "–"


def read_results(path):
    """The report, and its rows by placement, mechanism and size; doors are called so."""
    with open(path, encoding="utf-8") as file:
        report = json.load(file)
    table = {}
    for row in report["rows"]:
        if row.get("error"):
            sys.exit(f"plot_paper_1998: {row['mechanism']}, {row['placement']}, "
                     f"{row['message_bytes']} bytes: {row['error']}")
        mechanism = "doors" if row["mechanism"] in DOORS else row["mechanism"]
        table.setdefault(row["placement"], {}).setdefault(mechanism, {})[row["message_bytes"]] = row
    if not table:
        sys.exit(f"plot_paper_1998: {path} has no rows; were all of them skipped?")
    return report, table


def size_name(size):
    for unit, name in [(1 << 20, "MiB"), (1 << 10, "KiB")]:
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} B"


def microseconds(ns):
    us = ns / 1e3
    return f"{us:,.0f}" if us >= 100 else f"{us:.1f}" if us >= 10 else f"{us:.2f}"


def median(row):
    return row["rtt_ns"]["p50"]


def spread(row):
    return row["spread"]["p50_min"], row["spread"]["p50_max"]


def describe(report):
    machine = report["machine"]
    return f"{machine['cpu']}, {machine['processors']} processors, Linux {machine['kernel']}"


def doors_row(report):
    return next((row["mechanism"] for row in report["rows"] if row["mechanism"] in DOORS), None)


def label_of(mechanism, report):
    name = MECHANISMS[mechanism][0]
    if mechanism == "doors" and doors_row(report) == "call":
        return "call, for doors"
    return name


def sizes_of(lines):
    return sorted({size for line in lines.values() for size in line})


def plot(report, table, path):
    # Only here: the summary does not need it, and it takes a second to load.
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot, ticker

    placements = [place for place in PLACEMENTS if place in table]
    figure, grid = pyplot.subplots(1, len(placements), figsize=(5.4 * len(placements) + 0.6, 5.4),
                                   sharey=True, squeeze=False)
    drawn = [name for name, (_, in_plot) in MECHANISMS.items()
             if in_plot and any(name in table[place] for place in placements)]
    for axes, place in zip(grid[0], placements):
        for number, name in enumerate(drawn):
            line = table[place].get(name, {})
            sizes = sorted(line)
            axes.plot(sizes, [median(line[size]) / 1e3 for size in sizes], "-o",
                      color=f"C{number}", linewidth=2.2 if name == "doors" else 1.3, markersize=4,
                      label=label_of(name, report))
            for size in sizes:
                axes.vlines(size, *(ns / 1e3 for ns in spread(line[size])), color=f"C{number}",
                            linewidth=3, alpha=0.25)
            if name in SOLARIS_26:
                axes.plot([1], [SOLARIS_26[name]], "D", color=f"C{number}", fillstyle="none",
                          markersize=6)
        # For the legend: what a hollow mark is.
        axes.plot([], [], "D", color="0.4", fillstyle="none", markersize=6, label="Solaris 2.6")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        sizes = sizes_of(table[place])
        axes.set_xticks(sizes, [size_name(size) for size in sizes], rotation=45, ha="right")
        axes.xaxis.set_minor_locator(ticker.NullLocator())
        axes.yaxis.set_major_formatter(ticker.FuncFormatter(lambda us, _: f"{us:,g}"))
        axes.tick_params(labelleft=True)
        axes.set_title(PLACEMENTS[place], fontsize=10)
        axes.set_xlabel("message size, each way")
        axes.grid(alpha=0.3)
    grid[0][0].set_ylabel("round trip in µs, median")
    grid[0][0].legend(fontsize=8, loc="upper left", frameon=False)
    figure.suptitle(describe(report), fontsize=9, color="0.3")
    figure.savefig(path, dpi=90, bbox_inches="tight", pil_kwargs={"optimize": True})


def print_table(header, rows):
    print("| " + " | ".join(header) + " |")
    print("| --- |" + " ---: |" * (len(header) - 1))
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print()


def cell(row):
    if row is None:
        return NOTHING
    least, most = spread(row)
    mark = "†" if row["fragmented"] else ""
    return f"{microseconds(median(row))}{mark} ({microseconds(least)} to {microseconds(most)})"


def print_sizes(report, lines):
    present = [name for name in MECHANISMS if name in lines]
    print_table(["message"] + [label_of(name, report) for name in present],
                [[size_name(size)] + [cell(lines[name].get(size)) for name in present]
                 for size in sizes_of(lines)])


def published(figures, mechanism):
    if mechanism not in figures:
        return NOTHING
    return f"{figures[mechanism]} ({figures[mechanism] / figures['doors']:.1f} x)"


def measured(lines, mechanism):
    row = lines.get(mechanism, {}).get(1)
    doors = lines.get("doors", {}).get(1)
    if row is None:
        return NOTHING
    times = f" ({median(row) / median(doors):.1f} x)" if doors else ""
    return microseconds(median(row)) + times


def print_one_byte(report, table):
    places = [place for place in PLACEMENTS if place in table]
    print("One byte there and back in µs, and how often as long as doors:\n")
    print_table(["mechanism", "Sun, 1996", "Solaris 2.6"]
                + [f"here, {PLACEMENTS[place]}" for place in places],
                [[label_of(name, report), published(SUN_1996, name), published(SOLARIS_26, name)]
                 + [measured(table[place], name) for place in places] for name in MECHANISMS])


def print_what_is_missing(report):
    for entry in report.get("absent", []):
        print(f"- {entry['mechanism']} was not measured: {entry['reason']}")
    for entry in report.get("skipped", []):
        size = entry.get("message_bytes")
        what = [entry.get("mechanism"), entry.get("placement"),
                None if size is None else size_name(size)]
        print(f"- {', '.join(part for part in what if part)} was skipped: {entry['reason']}")


def summarise(report, table):
    machine, settings = report["machine"], report["settings"]
    rounds = f"{settings['rounds']} round" + ("s" if settings["rounds"] != 1 else "")
    print(f"{describe(report)}; governor {machine['governor']}, load {machine['load']:g} at the "
          f"beginning; {rounds} of {settings['rtt_ms_per_round']:g} ms per row; "
          f"{machine['time'][:10]}.\n")
    if doors_row(report) == "call":
        print("This farcall has no row `door_call`: its row `call` stands for doors.\n")
    print_one_byte(report, table)
    for place in (place for place in PLACEMENTS if place in table):
        print(f"Median round trip in µs, {PLACEMENTS[place]}; in parentheses the least and the "
              "greatest median of the rounds:\n")
        print_sizes(report, table[place])
    if any(row.get("fragmented") for row in report["rows"]):
        print("† longer than the mechanism's longest message, so it travels in several.\n")
    ranges = sorted((spread(row)[1] - spread(row)[0]) / median(row) for row in report["rows"])
    print(f"Spread, (greatest - least) / median: {ranges[len(ranges) // 2]:.0%} at the median of "
          f"all rows, nine of ten within {ranges[len(ranges) * 9 // 10]:.0%}, worst "
          f"{ranges[-1]:.0%}.")
    print_what_is_missing(report)


if __name__ == "__main__":
    plot_or_tell.run(__doc__, {"help": "JSON written by farcall compare"},
                     read_results, plot, summarise)
