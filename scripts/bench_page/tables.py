# SPDX-License-Identifier: Apache-2.0
"""The tables of the page. Cells carry the figures of the JSON, by which page.js sorts."""

from collections.abc import Callable, Iterator
from html import escape
from typing import Any, NamedTuple

from .rows import (NO_SIZE, NOTHING, PLACEMENTS, Row, command, control_of, dig, figure,
                   has_failed, is_control, placements, ratio, size_name)
from .sentences import reference_size


class Column(NamedTuple):
    """A figure: where it is in a row, and where the least and the greatest of the rounds are."""

    title: str
    path: tuple[str, ...]
    scale: float = 1.0
    low: tuple[str, ...] = ()
    high: tuple[str, ...] = ()


def _spread(title: str, path: tuple[str, ...], scale: float, of: tuple[str, ...],
            name: str) -> Column:
    return Column(title, path, scale, (*of, f"{name}_min"), (*of, f"{name}_max"))


PAIR = (
    _spread("round trip, median, µs", ("rtt_ns", "p50"), 1e-3, ("spread",), "p50"),
    Column("× control", ("ratio",), 1.0, ("ratio_low",), ("ratio_high",)),
    Column("p99 µs", ("rtt_ns", "p99"), 1e-3),
    Column("p99.9 µs", ("rtt_ns", "p999"), 1e-3),
    _spread("thousand messages/s", ("stream", "messages_per_s"), 1e-3, ("stream", "spread"),
            "messages_per_s"),
    Column("MB/s", ("stream", "bytes_per_s"), 1e-6),
    Column("wake-up µs", ("wakeup_ns",), 1e-3),
    Column("processor s per million", ("cpu_s_per_million",)),
    Column("system calls per message", ("syscalls_per_message",)),
    Column("switches per message", ("context_switches_per_message",)),
    Column("set-up µs", ("setup_us",)),
)
BROADCAST = (
    Column("readers", ("readers",)),
    _spread("round, median, µs", ("round_ns", "p50"), 1e-3, ("spread",), "p50"),
    Column("p99 µs", ("round_ns", "p99"), 1e-3),
    _spread("thousand messages/s", ("stream", "messages_per_s"), 1e-3, ("stream", "spread"),
            "messages_per_s"),
    Column("part missed", ("stream", "missed")),
    Column("processor s per million", ("cpu_s_per_million",)),
)
SCALING = (
    Column("clients", ("clients",)),
    Column("servers", ("servers",)),
    Column("thousand calls/s", ("calls",), 1e-3, ("spread", "calls_per_s_min"),
           ("spread", "calls_per_s_max")),
    Column("p99 µs", ("tail",), 1e-3),
    Column("fairness", ("fair",)),
)


def _cell(row: Row, column: Column) -> str:
    value = dig(row, *column.path)
    if value is None:
        return f"<td>{NOTHING}</td>"
    low, high = dig(row, *column.low), dig(row, *column.high)
    spread = ""
    if column.low and isinstance(low, (int, float)) and isinstance(high, (int, float)):
        spread = f" <small>{figure(low, column.scale)} to {figure(high, column.scale)}</small>"
    if isinstance(value, int) and column.scale == 1:
        return f'<td data-value="{value}">{value:,}</td>'
    return f'<td data-value="{value!r}">{figure(value, column.scale)}{spread}</td>'


def _line(row: Row, columns: list[Column], again: str) -> str:
    size = None if row["mechanism"] in NO_SIZE else row.get("message_bytes")
    chosen = "" if size is None else size
    place = row.get("placement", "")
    mark = ' class="control"' if is_control(row) else ""
    note = "†" if row.get("fragmented") else ""
    cells = [f'<th scope="row">{escape(row["label"])}{note}</th>',
             f"<td>{escape(place)}</td>",
             f'<td data-value="{size or 0}">{NOTHING if size is None else size_name(size)}</td>']
    cells += [_cell(row, column) for column in columns]
    if again:
        cells.append(f"<td><code>{escape(again)}</code></td>")
    return (f'<tr{mark} data-place="{escape(place)}" data-size="{chosen}"'
            f' data-name="{escape(row["label"])}">{"".join(cells)}</tr>')


def _chooser(identity: str, title: str, options: list[tuple[str, str]], chosen: str) -> str:
    made = "".join(
        f'<option value="{escape(value)}"{" selected" if value == chosen else ""}>{escape(text)}'
        "</option>" for value, text in [("", "all"), *options])
    return f'<label>{title} <select data-filter="{identity}">{made}</select></label>'


def _choosers(rows: list[Row]) -> Iterator[str]:
    places = placements(rows)
    if len(places) > 1:
        yield _chooser("place", "placement",
                       [(name, PLACEMENTS.get(name, name)) for name in places], places[0])
    sizes = sorted({row["message_bytes"] for row in rows
                    if row["mechanism"] not in NO_SIZE and row.get("message_bytes") is not None})
    if len(sizes) > 1:
        yield _chooser("size", "size", [(str(size), size_name(size)) for size in sizes],
                       str(reference_size(rows)))
    yield '<label>mechanism <input type="search" data-filter="name" placeholder="any"></label>'


def table(identity: str, caption: str, rows: list[Row], columns: tuple[Column, ...],
          again: Callable[[Row], str] | None = None) -> Iterator[str]:
    """Choosers and a table of all rows; without scripts it is whole, and in this order."""
    rows = [row for row in rows if not has_failed(row)]
    shown = [column for column in columns if any(dig(row, *column.path) is not None for row in rows)]
    rows.sort(key=lambda row: (row.get("placement", ""), row.get("message_bytes", 0),
                               dig(row, *shown[0].path) or 0))
    titles = ["mechanism", "placement", "size", *(column.title for column in shown)]
    heads = "".join(f'<th scope="col" aria-sort="none"><button type="button">{title}</button></th>'
                    for title in titles)
    if again is not None:
        heads += '<th scope="col">command that measures it again</th>'
    yield f'<form class="choosers" data-table="{identity}">'
    yield from _choosers(rows)
    yield "<output></output></form>"
    yield f'<div class="wide" tabindex="0" role="region" aria-label="{escape(caption)}">'
    yield f'<table id="{identity}"><caption>{caption}</caption><thead><tr>{heads}</tr></thead><tbody>'
    for row in rows:
        yield _line(row, shown, again(row) if again else "")
    yield "</tbody></table></div>"


def add_ratios(rows: list[Row]) -> None:
    """Holds each row against the control of its placement."""
    for row in rows:
        control = control_of(rows, row["placement"])
        if control is not None and dig(row, "rtt_ns", "p50") and not is_control(row):
            row["ratio"], row["ratio_low"], row["ratio_high"] = ratio(row, control)


def add_streams(rows: list[Row]) -> None:
    """What a row moves one way; of one that only answers, calls were counted: another thing."""
    for row in rows:
        if row["mechanism"] == "memcpy" or dig(row, "throughput", "one_way") is not False:
            row["stream"] = row.get("throughput")


def of_pairs(results: Row, rows: list[Row]) -> Iterator[str]:
    add_ratios(rows)
    add_streams(rows)
    yield from table(
        "pairs", "Each figure with the least and the greatest of the rounds.", rows, PAIR,
        lambda row: command(results, row))


def of_broadcasts(results: Row, rows: list[Row]) -> Iterator[str]:
    yield from table(
        "broadcasts", "One writer, many readers; with the least and the greatest of the rounds.",
        rows, BROADCAST, lambda row: command(results, row))


def of_scaling(rows: list[Row]) -> Iterator[str]:
    yield from table("scaling", "Many clients at once; with the least and the greatest of the rounds.",
                     rows, SCALING)


def facts(pairs: list[tuple[str, Any]]) -> Iterator[str]:
    yield "<dl>"
    for name, value in pairs:
        if isinstance(value, dict):
            value = [f"{key} {part}" for key, part in value.items() if part != "Not affected"]
        if isinstance(value, list):
            value = ", ".join(str(part) for part in value)
        yield f"<div><dt>{escape(name)}</dt><dd>{escape(str(value))}</dd></div>"
    yield "</dl>"
