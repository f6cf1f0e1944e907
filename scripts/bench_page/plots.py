# SPDX-License-Identifier: Apache-2.0
"""The plots of the page, as data for plotly.js. Colours are numbers: page.js knows the palettes."""

import math
import re
from collections.abc import Callable, Iterable
from typing import Any

from .rows import (HELD_AGAINST, NO_SIZE, PLACEMENTS, Row, dig, duration, figure, has_failed,
                   is_control, placements, rate, size_name, with_unit)
from .sentences import summary_of_plot

Plot = dict[str, Any]

COLOURS = 7  # of the palettes in page.js; with 8 symbols no two of 56 are alike
SHOWN_AT_FIRST = 12  # lines; more than that nobody tells apart
DASHES = {"spin": "solid", "adaptive": "dash", "block": "dot"}
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "x", "star", "cross")
# Who is shown at first where there are many: what most readers know, and what they came for.
KNOWN = ("ring", "pipe", "unix_stream", "tcp", "call", "door_call", "message_call", "posix_mq",
         "zeromq", "broadcast", "cacheline_pingpong", "futex_pingpong", "memcpy")


class Looks:
    """Gives each mechanism one look that is the same in all plots of a page."""

    def __init__(self, rows: Iterable[Row]) -> None:
        rows = list(rows)
        self.names = list(dict.fromkeys(
            row["mechanism"] for row in sorted(rows, key=lambda row: _rank(row["mechanism"]))))
        waits: dict[str, set[str]] = {}
        for row in rows:
            waits.setdefault(row["mechanism"], set()).add(row.get("wait", ""))
        self.several = {name for name, those in waits.items() if len(those) > 1}

    def trace(self, row: Row) -> dict[str, Any]:
        number = self.names.index(row["mechanism"])
        dash = DASHES.get(row.get("wait", ""), "solid")
        limit = row["mechanism"] in NO_SIZE
        return {
            "type": "scatter",
            "mode": "lines" if limit else "lines+markers",
            "name": row["label"],
            "meta": {"colour": -1 if is_control(row) else number % COLOURS},
            "line": {"dash": "dashdot" if is_control(row)
                     else dash if row["mechanism"] in self.several else "solid", "width": 2},
            "marker": {"symbol": SYMBOLS[number % len(SYMBOLS)], "size": 7},
            "hovertemplate": "%{text}<extra></extra>",
        }


def _rank(mechanism: str) -> int:
    return KNOWN.index(mechanism) if mechanism in KNOWN else len(KNOWN)


def _lines(rows: Iterable[Row]) -> list[list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: _rank(row["mechanism"])):
        found.setdefault(row["label"], []).append(row)
    return list(found.values())


def _add_bars(trace: dict[str, Any], points: list[list[Any]]) -> None:
    """What the rounds span, where the JSON tells."""
    if all(low is not None and high is not None for _, low, high in points):
        trace["error_y"] = {
            "type": "data", "symmetric": False, "thickness": 1, "width": 3,
            "array": [high - value for value, _, high in points],
            "arrayminus": [value - low for value, low, _ in points],
        }


def traces(rows: list[Row], looks: Looks, across: Callable[[Row], float],
           path: tuple[str, ...], bounds: tuple[tuple[str, ...], tuple[str, ...]],
           unit: float, tell: Callable[[Row], str]) -> list[dict[str, Any]]:
    """One line per label; path and bounds say where a figure and its spread are in a row."""
    made: list[dict[str, Any]] = []
    for line in _lines(row for row in rows if dig(row, *path)):
        line.sort(key=across)
        trace = looks.trace(line[0])
        trace["x"] = [across(row) for row in line]
        trace["y"] = [dig(row, *path) * unit for row in line]
        trace["text"] = [tell(row) for row in line]
        _add_bars(trace, [[None if (value := dig(row, *one)) is None else value * unit
                           for one in (path, *bounds)] for row in line])
        trace["visible"] = len(made) < SHOWN_AT_FIRST
        made.append(trace)
    return made


def _span(text: Callable[[float], str], low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f" ({text(low)} to {text(high)})"


def _tell_trip(row: Row) -> str:
    spread = row.get("spread") or {}
    return (f"{row['label']}, {size_name(row['message_bytes'])}<br>"
            f"{duration(row['rtt_ns']['p50'])}"
            + _span(duration, spread.get("p50_min"), spread.get("p50_max")))


def _tell_stream(row: Row) -> str:
    spread = row["throughput"].get("spread") or {}
    size = row["message_bytes"]
    low, high = spread.get("messages_per_s_min"), spread.get("messages_per_s_max")
    return (f"{row['label']}, {size_name(size)}<br>{rate(row['throughput']['bytes_per_s'])}"
            + _span(rate, None if low is None else low * size, None if high is None else high * size)
            + f"<br>{figure(row['throughput']['messages_per_s'])} messages/s")


def _place(size: int) -> float:
    """Where a size stands on the axis, which has no 0: an empty message is left of one byte."""
    return size or 0.5


def size_axis(sizes: list[int]) -> dict[str, Any]:
    return {"type": "log", "title": {"text": "message size"}, "tickvals": [*map(_place, sizes)],
            "ticktext": [size_name(size) for size in sizes]}


def value_axis(title: str, values: list[float], text: Callable[[float], str]) -> dict[str, Any]:
    """From the least median to the greatest: one bad round must not squeeze all the others."""
    low, high = math.log10(min(values)), math.log10(max(values))
    steps = (1,) if high - low > 2.5 else (1, 2, 5)
    marks = [step * 10.0**power for power in range(math.floor(low) - 1, math.ceil(high) + 1)
             for step in steps]
    return {"type": "log", "title": {"text": title}, "range": [low - 0.15, high + 0.15],
            "tickvals": marks, "ticktext": [re.sub(r"\.0+(?=\s|$)", "", text(mark)) for mark in marks]}


def seconds(value: float) -> str:
    return duration(value * 1e9)


def count(value: float) -> str:
    return with_unit(value, [(1, ""), (1e3, "k"), (1e6, "M")])


def values_of(lines: list[dict[str, Any]]) -> list[float]:
    return [value for line in lines for value in line["y"]] or [1.0]


def _stretch(limits: list[dict[str, Any]], sizes: list[int]) -> None:
    """Limits that have no size hold for all: a line from side to side."""
    for trace in limits:
        ends = [_place(sizes[0]), _place(sizes[-1])]
        trace["x"], trace["y"], trace["text"] = ends, trace["y"] * 2, trace["text"] * 2
        trace.pop("error_y", None)


def one_plot(identity: str, title: str, alt: str, axes: tuple[dict[str, Any], dict[str, Any]],
             lines: list[dict[str, Any]]) -> Plot:
    return {"id": identity, "title": title, "alt": alt, "traces": lines,
            "layout": {"xaxis": axes[0], "yaxis": axes[1]}}


def _trips(place: str, here: list[Row], looks: Looks, sizes: list[int]) -> Plot:
    shown = [row for row in here if not is_control(row)]
    limits = [row for row in here if row["mechanism"] == "futex_pingpong"
              or row["mechanism"] == HELD_AGAINST.get(place)]
    bounds = (("spread", "p50_min"), ("spread", "p50_max"))
    lines = traces(shown, looks, lambda row: _place(row["message_bytes"]), ("rtt_ns", "p50"),
                   bounds, 1e-9, _tell_trip)
    flat = traces(limits, looks, lambda row: _place(row["message_bytes"]), ("rtt_ns", "p50"),
                  bounds, 1e-9, _tell_trip)
    _stretch(flat, sizes)
    title = f"Round trip, {PLACEMENTS.get(place, place)}"
    return one_plot(f"trip-{place}", title,
                    summary_of_plot(shown, f"{title}: median time against message size"),
                    (size_axis(sizes), value_axis("round trip, median", values_of(lines + flat), seconds)),
                    lines + flat)


def _streams(place: str, here: list[Row], looks: Looks, sizes: list[int]) -> Plot:
    shown = [row for row in here if dig(row, "throughput", "bytes_per_s") and (
        row["mechanism"] == "memcpy" or (not is_control(row)
                                         and row["throughput"].get("one_way") is not False))]
    for row in shown:  # the spread is that of messages, the line that of bytes
        for end in ("min", "max"):
            messages = dig(row, "throughput", "spread", f"messages_per_s_{end}")
            row[f"bytes_{end}"] = None if messages is None else messages * row["message_bytes"]
    lines = traces(shown, looks, lambda row: _place(row["message_bytes"]),
                   ("throughput", "bytes_per_s"), (("bytes_min",), ("bytes_max",)), 1, _tell_stream)
    title = f"Throughput one way, {PLACEMENTS.get(place, place)}"
    return one_plot(f"stream-{place}", title,
                    summary_of_plot(shown, f"{title}: bytes a second against message size"),
                    (size_axis(sizes), value_axis("bytes per second", values_of(lines), rate)), lines)


def of_pairs(rows: list[Row]) -> list[Plot]:
    """Of each placement the round trips and the streams."""
    rows = [row for row in rows if not has_failed(row)]
    looks = Looks(rows)
    sizes = sorted({row["message_bytes"] for row in rows if row["mechanism"] not in NO_SIZE})
    plots: list[Plot] = []
    for place in placements(rows):
        here = [row for row in rows if row["placement"] == place]
        if sizes:
            plots += [_trips(place, here, looks, sizes), _streams(place, here, looks, sizes)]
    return [plot for plot in plots if plot["traces"]]


def count_axis(title: str, counts: Iterable[int]) -> dict[str, Any]:
    values = sorted(set(counts))
    return {"type": "log", "title": {"text": title}, "tickvals": values,
            "ticktext": [str(value) for value in values]}


def of_broadcasts(rows: list[Row]) -> list[Plot]:
    """Of the smallest message: a round and a stream against the number of readers."""
    rows = [row for row in rows if not has_failed(row) and row.get("round_ns")]
    size = min((row["message_bytes"] for row in rows), default=0)
    rows = [row for row in rows if row["message_bytes"] == size]
    if not rows:
        return []
    looks = Looks(rows)
    axis = count_axis("readers", (row["readers"] for row in rows))

    def tell(row: Row) -> str:
        return (f"{row['label']}, {row['readers']} readers<br>"
                f"{duration(row['round_ns']['p50'])} a round<br>"
                f"{figure(dig(row, 'stream', 'messages_per_s'))} messages/s")

    made = []
    for name, title, what, path, bounds, unit, show in (
            ("round", f"All told and heard from, {size_name(size)}", "median", ("round_ns", "p50"),
             (("spread", "p50_min"), ("spread", "p50_max")), 1e-9, seconds),
            ("fan-out", f"What the slowest reader receives, {size_name(size)}",
             "messages per second", ("stream", "messages_per_s"),
             (("stream", "spread", "messages_per_s_min"),
              ("stream", "spread", "messages_per_s_max")), 1, count)):
        lines = traces(rows, looks, lambda row: float(row["readers"]), path, bounds, unit, tell)
        made.append(one_plot(name, title, summary_of_plot(rows, f"{title} against readers"),
                              (axis, value_axis(what, values_of(lines), show)), lines))
    return made
