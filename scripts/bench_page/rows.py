# SPDX-License-Identifier: Apache-2.0
"""What is read from the JSON of `farcall compare`: fields, names, figures, commands."""

import math
import shlex
from collections.abc import Iterable
from typing import Any

Row = dict[str, Any]

NOTHING = "–"
HARD_SPACE = "\u00a0"  # a figure and its unit stay on one line
REFERENCE_BYTES = 64  # the size at which rows are held against each other
PLACEMENTS = {
    "two-cpus": "two processors",
    "one-cpu": "one processor",
    "free": "placed by the scheduler",
}
# These move the same bytes whatever the size is.
NO_SIZE = ("null_call", "cacheline_pingpong", "cacheline_shared", "futex_pingpong")
# What others are held against. On one processor a cache line goes nowhere.
HELD_AGAINST = {"two-cpus": "cacheline_pingpong", "free": "cacheline_pingpong",
                "one-cpu": "futex_pingpong"}
# What a command says about which rows are measured; all else is how.
SELECTION = ("--rows", "--sizes", "--placement", "--readers", "--wait", "--json", "--plot",
             "--workload")


def dig(row: Any, *path: str) -> Any:
    """A field of nested objects, or None where any of them is missing or null."""
    for name in path:
        row = row.get(name) if isinstance(row, dict) else None
    return row


def figure(value: float | None, scale: float = 1.0) -> str:
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


def with_unit(value: float, units: list[tuple[float, str]]) -> str:
    for factor, unit in reversed(units):
        if value >= factor * 0.9995:
            break
    else:
        factor, unit = units[0]
    return f"{figure(value / factor)}{HARD_SPACE}{unit}".rstrip()


def duration(nanoseconds: float) -> str:
    return with_unit(nanoseconds, [(1, "ns"), (1e3, "µs"), (1e6, "ms"), (1e9, "s")])


def rate(bytes_per_s: float) -> str:
    return with_unit(bytes_per_s, [(1, "B/s"), (1e3, "kB/s"), (1e6, "MB/s"), (1e9, "GB/s")])


def size_name(size: int) -> str:
    for unit, name in [(1 << 20, "MiB"), (1 << 10, "KiB")]:
        if size >= unit and size % unit == 0:
            return f"{size // unit}{HARD_SPACE}{name}"
    return f"{size}{HARD_SPACE}B"


def is_control(row: Row) -> bool:
    return bool(row.get("engine") == "control" or row["mechanism"] in NO_SIZE)


def has_failed(row: Row) -> bool:
    return bool(row.get("error"))


def name_rows(rows: Iterable[Row]) -> None:
    """Gives every row a label: the mechanism, and what else tells it from its like."""
    rows = list(rows)
    ways: dict[str, set[tuple[Any, Any]]] = {}
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


def placements(rows: Iterable[Row]) -> list[str]:
    """Those that were measured, the known ones first."""
    there = dict.fromkeys(row["placement"] for row in rows)
    return [*(name for name in PLACEMENTS if name in there),
            *(name for name in there if name not in PLACEMENTS)]


def control_of(rows: Iterable[Row], placement: str) -> Row | None:
    """The row that the others of a placement are held against."""
    for row in rows:
        if (row["placement"] == placement and row["mechanism"] == HELD_AGAINST.get(placement)
                and dig(row, "rtt_ns", "p50")):
            return row
    return None


def ratio(row: Row, control: Row) -> tuple[float, float | None, float | None]:
    """Median against median, with the range that the rounds of both leave open."""
    value = row["rtt_ns"]["p50"] / control["rtt_ns"]["p50"]
    low, high = dig(row, "spread", "p50_min"), dig(row, "spread", "p50_max")
    least, most = dig(control, "spread", "p50_min"), dig(control, "spread", "p50_max")
    if low and high and least and most:
        return value, low / most, high / least
    return value, None, None


def _manner(results: Row) -> list[str]:
    """The options of the run that say how it measured, not what."""
    told = dig(results, "machine", "command") or ""
    try:
        given = shlex.split(told)
    except ValueError:  # of a version that put words side by side as they were
        given = told.split(" ")
    if len(given) < 2:  # of a version that did not tell
        return ["--quick"] if dig(results, "settings", "quick") else []
    manner, keep = [], True
    for word in given[given.index("compare") + 1:] if "compare" in given else []:
        if word.startswith("--"):
            keep = word.partition("=")[0] not in SELECTION
        if keep:
            manner.append(word)
    return manner


def command(results: Row, row: Row) -> str:
    """What measures a row again, as it has been measured."""
    words = ["farcall", "compare"]
    if row.get("readers"):
        words += ["--workload", "broadcast", "--readers", str(row["readers"])]
    words += ["--rows", row["mechanism"]]
    if row["mechanism"] not in NO_SIZE:
        words += ["--sizes", str(row["message_bytes"])]
    if not row.get("readers"):
        words += ["--placement", row["placement"]]
    if row["label"].endswith(f", {row.get('wait')}"):
        words += ["--wait", row["wait"]]
    return shlex.join(words + _manner(results))
