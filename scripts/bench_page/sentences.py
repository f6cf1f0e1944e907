# SPDX-License-Identifier: Apache-2.0
"""What the figures say, in sentences. Those whose rows were not measured are left out."""

from collections.abc import Iterator
from typing import Any

from .rows import (HELD_AGAINST, REFERENCE_BYTES, Row, control_of, dig, duration, figure,
                   has_failed, is_control, placements, rate, size_name)

# What is beside the figures, to hold them against.
CONTROLS = {
    "null_call": "An empty function called within one process: a call between two processes adds"
                 " all the rest.",
    "memcpy": "One copy of the message within one process: what copies each message cannot move"
              " bytes faster than that.",
    "cacheline_pingpong": "Two processors that hand one cache line each way to and fro: what a message"
                          " and its answer take that have memory of their own each way.",
    "lines_pingpong": "The same with the message in them, in as many lines as it fills, one for every"
                      " 56 bytes.",
    "copy_pair": "One process copies each message into shared memory, another out of there, in the"
                 " chunks and at the distance that are quickest here: what copies twice takes about"
                 " that.",
    "cacheline_shared": "A single line for both ways: who answers has it already. Requests and replies"
                        " in the same memory, as those of call and door_call, come near it.",
    "futex_pingpong": "Two processes that put each other to sleep and wake each other: who sleeps"
                      " while it waits cannot be much faster than that.",
}
WHERE = {
    "two-cpus": "with each side on a processor of its own",
    "one-cpu": "with both sides on one processor",
    "free": "with both sides where the scheduler places them",
}
# What others are held against, the first that is there.
USUAL = {"pipe": "a pipe", "unix_stream": "a Unix stream socket", "tcp": "TCP"}


def reference_size(rows: list[Row]) -> int:
    sizes = {row["message_bytes"] for row in rows if not is_control(row)}
    return min(sizes, key=lambda size: abs(size - REFERENCE_BYTES), default=REFERENCE_BYTES)


def _usual(rows: list[Row], than: Row) -> Row | None:
    for name in USUAL:
        for row in rows:
            if row["mechanism"] == name and row is not than:
                return row
    return None


def _trips(rows: list[Row], place: str) -> Iterator[str]:
    size = reference_size(rows)
    those = [row for row in rows if row["placement"] == place and row["message_bytes"] == size
             and not is_control(row) and dig(row, "rtt_ns", "p50")]
    if not those:
        return
    best = min(those, key=lambda row: float(row["rtt_ns"]["p50"]))
    p50 = best["rtt_ns"]["p50"]
    control = control_of(rows, place)
    bound = ""
    if control is not None and place == "two-cpus":
        bound = (f"; a bare cache line each way takes"
                 f" {duration(control['rtt_ns']['p50'])}")
    yield (f"Fastest here is {best['label']}: a message of {size_name(size)} and its answer take"
           f" {duration(p50)}, {WHERE.get(place, place)}{bound}.")
    usual = _usual(those, best)
    if usual is not None:
        theirs = usual["rtt_ns"]["p50"]
        yield (f"For the same, {USUAL[usual['mechanism']]} takes {duration(theirs)}, which is"
               f" {figure(theirs / p50)} times as long.")


def _streams(rows: list[Row], place: str) -> Iterator[str]:
    those = [row for row in rows if row["placement"] == place and not is_control(row)
             and dig(row, "throughput", "bytes_per_s")
             and dig(row, "throughput", "one_way") is not False]
    if not those:
        return
    best = max(those, key=lambda row: float(row["throughput"]["bytes_per_s"]))
    bytes_per_s = best["throughput"]["bytes_per_s"]
    sentence = (f"Most bytes one way are moved by {best['label']}: {rate(bytes_per_s)} in messages"
                f" of {size_name(best['message_bytes'])}")
    usual = _usual([row for row in those if row["message_bytes"] == best["message_bytes"]], best)
    if usual is not None:
        theirs = usual["throughput"]["bytes_per_s"]
        sentence += f", where {USUAL[usual['mechanism']]} moves {rate(theirs)}"
    yield sentence + "."


def results(rows: list[Row]) -> Iterator[str]:
    """Up to three sentences for those who have never seen such figures."""
    rows = [row for row in rows if not has_failed(row)]
    for place in placements(rows)[:1]:
        yield from _trips(rows, place)
        yield from _streams(rows, place)


def controls(rows: list[Row]) -> Iterator[tuple[str, str, str]]:
    """(name, what it is, what was measured) of each that was measured."""
    for name, meaning in CONTROLS.items():
        measured = [row for row in rows if row["mechanism"] == name and dig(row, "rtt_ns", "p50")]
        if name == "memcpy":
            size = max((row["message_bytes"] for row in measured), default=0)
            measured = [row for row in measured if row["message_bytes"] == size][:1]
            said = [f"{duration(row['rtt_ns']['p50'])} for {size_name(size)}" for row in measured]
        else:
            said = [f"{duration(row['rtt_ns']['p50'])} ({row['placement']})" for row in measured
                    if name not in HELD_AGAINST.values() or name == "futex_pingpong"
                    or row["placement"] != "one-cpu"]
        if said:
            yield name, meaning, ", ".join(said)


def summary_of_plot(rows: list[dict[str, Any]], what: str) -> str:
    """What a picture shows, for those who do not see it."""
    lines = list(dict.fromkeys(row["label"] for row in rows))
    return f"{what}; {len(lines)} lines: {', '.join(lines)}. The same figures are in the table."
