# SPDX-License-Identifier: Apache-2.0
"""Plots of what is measured beside `farcall compare`'s pairs: many clients, and the 2024 study."""

import statistics
from collections.abc import Callable
from typing import Any

from .plots import (Looks, Plot, count, count_axis, one_plot, seconds, size_axis, traces,
                    value_axis, values_of)
from .rows import Row, dig, duration, figure, has_failed, name_rows, size_name
from .sentences import summary_of_plot

NANOSECONDS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}


def scaling_rows(report: Row) -> list[Row]:
    """Rows of many clients of one server, and of pairs; those of idle connections are left out."""
    rows = [dict(row) for row in report.get("rows", []) if isinstance(row, dict)
            and row.get("mechanism") and not has_failed(row) and not row.get("idle")]
    for row in rows:
        row["calls"] = row["calls_per_s"]
        row["tail"] = row["call_ns"]["p99"]
        row["fair"] = row["fairness"]
    name_rows(rows)
    return rows


def of_scaling(rows: list[Row]) -> list[Plot]:
    """Calls a second, the slow ones among them, and fairness, against clients of one server."""
    rows = [row for row in rows if row["servers"] == 1]
    if not rows:
        return []
    looks = Looks(rows)
    axis = count_axis("clients", (int(row["clients"]) for row in rows))

    def tell(row: Row) -> str:
        said = [f"{row['label']}, {row['clients']:g} clients"]
        if row["calls"] is not None:
            said.append(f"{figure(row['calls'])} calls/s")
        if row["tail"] is not None:
            said.append(f"99 % within {duration(row['tail'])}")
        if row["fair"] is not None:
            said.append(f"fairness {figure(row['fair'])}")
        return "<br>".join(said)

    made = []
    axes: list[tuple[str, str, float, Callable[[float], str]]] = [
        ("calls", "Calls per second of all clients", 1, count),
        ("tail", "99 % of calls within", 1e-9, seconds),
        ("fair", "Fairness: 1 is equal shares", 1, figure)]
    for field, title, unit, show in axes:
        lines = traces(rows, looks, lambda row: float(row["clients"]), (field,),
                       (("",), ("",)), unit, tell)
        if lines:
            made.append(one_plot(f"scaling-{field}", title,
                              summary_of_plot(rows, f"{title} against clients"),
                              (axis, value_axis(title, values_of(lines), show)), lines))
    return made


def study_rows(results: Row) -> list[Row]:
    """One row per mechanism and size, of the repetitions that Google Benchmark has written."""
    times: dict[tuple[str, str, int], list[float]] = {}
    for run in results.get("benchmarks", []):
        parts = run["run_name"].removesuffix("/real_time").split("/")
        if run.get("run_type") == "iteration" and not run.get("error_occurred") and len(parts) == 3:
            group, mechanism, size = parts
            times.setdefault((group, mechanism, int(size)), []).append(
                run["real_time"] * NANOSECONDS[run["time_unit"]])
    rows = [{"mechanism": mechanism if group == "study" else f"{mechanism} ({group})",
             "message_bytes": size, "mean_ns": statistics.mean(values),
             "least": min(values), "most": max(values)}
            for (group, mechanism, size), values in times.items() if size]
    name_rows(rows)
    return rows


def of_study(rows: list[Row]) -> list[Plot]:
    """The study's figure: the mean of an iteration against message size."""
    if not rows:
        return []
    sizes = sorted({row["message_bytes"] for row in rows})
    title = "A child, a channel and 40,000 bytes"

    def tell(row: Row) -> str:
        return (f"{row['label']}, {size_name(row['message_bytes'])}<br>{duration(row['mean_ns'])}"
                f" ({duration(row['least'])} to {duration(row['most'])})")

    lines = traces(rows, Looks(rows), lambda row: float(dig(row, "message_bytes")), ("mean_ns",),
                   (("least",), ("most",)), 1e-9, tell)
    axis = size_axis(sizes)
    axis["ticktext"] = [str(size) for size in sizes]
    return [one_plot("study", title, summary_of_plot(rows, f"{title}: mean against message size"),
                     (axis, value_axis("mean of an iteration", values_of(lines), seconds)),
                     lines)]
