#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Draws and sums up what bench/study_2024.cpp measured.

Usage: plot_study_2024.py RESULTS.json... [--plot FILE.png] [--summary FILE.md]

The plot: mean time of an iteration against message size, one line per mechanism; the additions
of this project are dashed. File mappings are left out of it, as in the study, because they depend
on the disk. The summary, on standard output if no file is named: the same as tables of
Markdown, with the spread over the repetitions and the floor to subtract. Several results of one
machine count as more repetitions.
"""

import json
import sys

import pandas

import plot_or_tell

LEFT_OUT = ["file_mapping"]
LINES = ["study", "addition"]  # the groups that have message sizes
MICROSECONDS = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6}


def read_results(paths):
    """One line per benchmark: group, mechanism, size (0 for floors), mean, least, most, in us."""
    benchmarks = []
    for path in paths:
        with open(path, encoding="utf-8") as file:
            results = json.load(file)
        benchmarks += results["benchmarks"]
    # A run that was shuffled is put in order.
    benchmarks.sort(key=lambda b: b.get("family_index", 0))
    broken = [f"{b['name']}: {b['error_message']}" for b in benchmarks if b.get("error_occurred")]
    if broken:
        sys.exit("\n".join(broken))
    runs = pandas.DataFrame([
        {"benchmark": b["run_name"], "us": b["real_time"] * MICROSECONDS[b["time_unit"]]}
        for b in benchmarks if b["run_type"] == "iteration"])
    table = runs.groupby("benchmark", sort=False)["us"].agg(["mean", "min", "max"]).reset_index()
    parts = table["benchmark"].str.removesuffix("/real_time").str.split("/", expand=True)
    parts = parts.reindex(columns=range(3)).fillna({2: 0})
    table.insert(0, "group", parts[0])
    table.insert(1, "mechanism", parts[1])
    table.insert(2, "size", parts[2].astype(int))
    table["spread"] = (table["max"] - table["min"]) / table["mean"]
    return results["context"], table.drop(columns="benchmark")


def by_size(table, group, column):
    """Sizes down, mechanisms across, in the order in which they were measured."""
    lines = table[table["group"] == group]
    order = lines["mechanism"].unique()
    return lines.pivot(index="size", columns="mechanism", values=column)[order]


def describe(context):
    return (f"{context.get('processor', 'processor not recorded')}, {context['num_cpus']} "
            f"processors, Linux {context.get('kernel', 'not recorded')}")


def plot(context, table, path):
    # Only here: the summary does not need it, and it takes a second to load.
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot, ticker

    figure, axes = pyplot.subplots(figsize=(9, 5.2))
    for group, style in zip(LINES, ["-o", "--s"]):
        if group not in set(table["group"]):
            continue
        means = by_size(table, group, "mean").drop(columns=LEFT_OUT, errors="ignore")
        for number, mechanism in enumerate(means):
            axes.plot(means.index, means[mechanism], style, color=f"C{number}",
                      linewidth=1.3, markersize=3.5,
                      label=mechanism + (" (addition)" if group == "addition" else ""))
    floor = table[(table["group"] == "floor") & (table["mechanism"] == "fork")]
    if not floor.empty:
        axes.axhline(floor["mean"].iloc[0], color="grey", linestyle=":", label="fork alone")
    sizes = sorted(size for size in table["size"].unique() if size)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    # Logarithmic: the slow ones at small sizes would press all others onto the floor.
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(ticker.LogLocator(subs=[1, 2, 5]))
    axes.yaxis.set_major_formatter(ticker.StrMethodFormatter("{x:,.0f}"))
    axes.yaxis.set_minor_formatter(ticker.NullFormatter())
    axes.set_xlabel("message size in bytes")
    axes.set_ylabel("mean time of an iteration in µs")
    axes.set_title("A child, a channel and 40,000 bytes in messages of one size\n"
                   + describe(context), fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False)
    figure.savefig(path, dpi=90, bbox_inches="tight", pil_kwargs={"optimize": True})


def print_table(header, rows):
    print("| " + " | ".join(header) + " |")
    print("| --- |" + " ---: |" * (len(header) - 1))
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print()


def print_sizes(times):
    print_table(["mechanism"] + [str(size) for size in times.index],
                [[name] + [f"{value:.0f}" for value in times[name]] for name in times])


def summarise(context, table):
    print(f"{describe(context)}; governor {context.get('governor', 'not recorded')}, address "
          f"randomisation {context.get('address_randomisation', 'not recorded')}; "
          f"{context['date'][:10]}.\n")
    for group in LINES:
        if group not in set(table["group"]):
            continue
        print(f"Mean of an iteration in µs, {group}:\n")
        print_sizes(by_size(table, group, "mean"))
    floors = table[table["group"] == "floor"]
    if not floors.empty:
        print("Floor: the same iteration with nothing written, in µs:\n")
        print_table(["mechanism", "mean", "least", "most"],
                    [[row["mechanism"]] + [f"{row[name]:.0f}" for name in ["mean", "min", "max"]]
                     for _, row in floors.iterrows()])
        least = floors.set_index("mechanism")["min"]
        for group in LINES:
            if group not in set(table["group"]):
                continue
            print(f"Above the floor, {group}: the least of the repetitions less the least of the "
                  "floor's, in µs. What is lost in the noise is 0:\n")
            above = by_size(table, group, "min")
            print_sizes((above - least.reindex(above.columns)).clip(lower=0))
    spread = table["spread"]
    print(f"Spread of the repetitions, (most - least) / mean: median {spread.median():.1%}, "
          f"nine of ten within {spread.quantile(0.9):.1%}, worst {spread.max():.1%}.")


if __name__ == "__main__":
    plot_or_tell.run(__doc__, {"nargs": "+", "help": "JSON written by build/release/bench/study-2024"},
                     read_results, plot, summarise)
