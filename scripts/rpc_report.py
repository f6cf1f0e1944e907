#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the published comparison beside what scripts/rpc_comparison.sh has measured, and plots it.

Usage: rpc_report.py RESULTS.jsonl [--plot FILE.png]
"""

import argparse
import json
import statistics
import sys

KEYS = ["ping_ms", "hello_ms", "calculator_ms", "timer_us"]
HEADINGS = ["ping", "hello", "calculator", "timer us"]
# 10,000 iterations, on the machine of those who published it.
PUBLISHED = {
    "dbus": [2300, 2300, 4504, 350],
    "tsocket": [770, 390, 950, 150],
    "module": [478, 220, 695, 140],
}
NAMES = {
    "dbus": "D-Bus",
    "tsocket": "Thrift, TSocket",
    "farcall": "Thrift, farcall (shared memory)",
    "module": "Thrift, farcall (kernel module)",
}
TITLES = {
    "two-cpus": "client and server on two processors",
    "free": "placed by the scheduler",
    "one-cpu": "client and server on one processor",
    "emulated": "in an emulated machine: only the ratios mean something",
}


def load(path):
    """placement -> transport -> medians of KEYS, scaled to 10,000 iterations, and their spread."""
    runs = {}
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            run = json.loads(line)
            scale = 10_000 / run["iterations"]
            values = [run[key] * (scale if key.endswith("_ms") else 1) for key in KEYS]
            runs.setdefault(run["placement"], {}).setdefault(run["transport"], []).append(values)
    return {
        placement: {
            transport: (
                [statistics.median(column) for column in zip(*rows)],
                [(min(column), max(column)) for column in zip(*rows)],
            )
            for transport, rows in transports.items()
        }
        for placement, transports in runs.items()
    }


def number(value):
    return f"{value:.0f}" if value >= 1000 else f"{value:.4g}"


def row(name, values, base=None):
    cells = "".join(
        f"{number(value):>10}" + (f" ({value / of:5.3f})" if base else " " * 8)
        for value, of in zip(values, base or values)
    )
    return f"  {name:<34}{cells}"


def report(measured):
    print("Milliseconds for 10,000 iterations, each with name() and version() as well;")
    print("in brackets: times TSocket's of the same run.\n")
    print("published" + " " * 27 + "".join(f"{h:>10}{'':8}" for h in HEADINGS))
    for transport, values in PUBLISHED.items():
        print(row(NAMES[transport], values, PUBLISHED["tsocket"]))
    for placement in [p for p in TITLES if p in measured]:
        print(f"\n{TITLES[placement]}")
        transports = measured[placement]
        base = transports["tsocket"][0] if "tsocket" in transports else None
        for transport in [t for t in NAMES if t in transports]:
            values, spread = transports[transport]
            print(row(NAMES[transport], values, base))
            ranges = "".join(f"{number(low) + ' - ' + number(high):>18}" for low, high in spread)
            print(f"  {'from - to':<34}{ranges}")


def plot(measured, path):
    try:
        import matplotlib
    except ImportError:
        print(f"rpc_report: no {path}: python3-matplotlib is not installed", file=sys.stderr)
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = {"published": {t: (v, None) for t, v in PUBLISHED.items()}}
    panels.update({p: measured[p] for p in TITLES if p in measured})
    figure, axes = pyplot.subplots(
        1, len(panels), figsize=(4.2 * len(panels), 4.2), sharey=True, squeeze=False
    )
    colours = {"dbus": "C3", "tsocket": "C0", "farcall": "C2", "module": "C4"}
    for axis, (placement, transports) in zip(axes[0], panels.items()):
        present = [t for t in NAMES if t in transports]
        width = 0.8 / max(len(present), 1)
        for i, transport in enumerate(present):
            axis.bar(
                [x + i * width for x in range(3)],
                transports[transport][0][:3],
                width,
                label=NAMES[transport],
                color=colours[transport],
            )
        axis.set_xticks([x + 0.4 - width / 2 for x in range(3)], HEADINGS[:3])
        axis.set_yscale("log")
        axis.set_title(placement)
    axes[0][0].set_ylabel("ms for 10,000 iterations")
    handles = {}
    for axis in axes[0]:
        for handle, label in zip(*axis.get_legend_handles_labels()):
            handles.setdefault(label, handle)
    figure.legend(handles.values(), handles.keys(), loc="lower center", ncols=len(handles))
    figure.tight_layout(rect=(0, 0.08, 1, 1))
    figure.savefig(path, dpi=120)
    print(f"\nplot: {path}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results")
    parser.add_argument("--plot")
    arguments = parser.parse_args()
    measured = load(arguments.results)
    if not measured:
        sys.exit("rpc_report: nothing was measured")
    report(measured)
    if arguments.plot:
        plot(measured, arguments.plot)


if __name__ == "__main__":
    main()
